package migrations

import (
	"log/slog"
	"time"
)

// Option changes how [Up], [Down] and [DownTo] work.
type Option func(*options)

type options struct {
	log                   *slog.Logger
	lockTimeout           time.Duration
	withoutExclusionRange bool
	waitForServer         bool
}

// WithLogger says at level Info what was migrated, once it is committed, and at level
// Warn whom a migration waits for. Without it, or with nil, nothing is said.
func WithLogger(log *slog.Logger) Option {
	return func(o *options) {
		if log != nil {
			o.log = log
		}
	}
}

// WithoutExclusionRange makes [Up] leave out the strategy exclusion_range, and with
// it the extension btree_gist. Where it was migrated before, it stays. [Down] and
// [DownTo] take no notice.
func WithoutExclusionRange() Option {
	return func(o *options) { o.withoutExclusionRange = true }
}

// WithLockTimeout limits how long each statement of a migration waits for a lock; the
// default is one second. While it waits for somebody's long transaction, decisions on
// that table wait behind it. So after that time the migration is rolled back, which lets
// them through, and tried again after a pause of half to one and a half times as long,
// until the context ends. The error then names the transactions with the oldest locks.
//
// Tables that the migration has locked before are held meanwhile, so a caller may wait for
// the sum, where several of them are in use.
//
// Zero waits without a limit, and lets everybody wait behind it. It must not be
// negative. Waiting for another migration to end is not limited: it holds up nobody.
func WithLockTimeout(d time.Duration) Option {
	return func(o *options) { o.lockTimeout = d }
}

// WaitForServer makes [Up] go on trying, about once a second, while the server cannot be
// reached, until the context ends: for a service that starts before its database does. What
// else may be wrong, such as the password, fails at once.
func WaitForServer() Option {
	return func(o *options) { o.waitForServer = true }
}

func newOptions(opts []Option) options {
	o := options{log: slog.New(slog.DiscardHandler), lockTimeout: defaultLockTimeout}
	for _, opt := range opts {
		if opt != nil {
			opt(&o)
		}
	}
	return o
}

// pending are the migrations to apply, in order: the optional ones last, so that
// one that is refused never stands in the way of another. A migration may have a
// lower version than one applied: an optional one that was refused at first.
//
// There are none for a database that a newer release has migrated: what ours would
// do there, nobody has tried.
func (o options) pending(applied appliedList) []Migration {
	if applied.highest() > latest() {
		return nil
	}
	var required, optional []Migration
	for _, m := range known {
		switch {
		case applied.has(m.Version) || m.Optional && o.withoutExclusionRange:
		case m.Optional:
			optional = append(optional, m)
		default:
			required = append(required, m)
		}
	}
	return append(required, optional...)
}
