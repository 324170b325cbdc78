package migrations

import (
	"log/slog"
	"time"
)

// Option changes how [Up], [Down], [DownTo] and [SetStorage] work.
type Option func(*options)

type options struct {
	log                   *slog.Logger
	lockTimeout           time.Duration
	withoutExclusionRange bool
	waitForServer         bool
	creates               bool // the version table, if it is not there
}

// WithLogger logs at level Info what was migrated, once it is committed, and at level
// Warn what a migration waits for. Without it, or with nil, nothing is logged.
func WithLogger(log *slog.Logger) Option {
	return func(o *options) {
		if log != nil {
			o.log = log
		}
	}
}

// WithoutExclusionRange makes [Up] leave out the strategy exclusion_range, and with it
// the extension btree_gist. If it was migrated before, it stays. [Down] and [DownTo]
// ignore this option.
func WithoutExclusionRange() Option {
	return func(o *options) { o.withoutExclusionRange = true }
}

// WithLockTimeout limits how long each statement of a migration waits for a lock; the
// default is one second. While it waits for a long transaction, decisions on that table
// wait behind it. So after that time the migration is rolled back, which lets them
// through, and tried again after a pause, until the context ends. The pause is half to
// one and a half times d, which counts as 100 ms at least and 5 s at most here. The error
// then names the oldest transactions that hold locks.
//
// Meanwhile the migration holds the tables that it has locked before. So if several
// tables are in use, a caller may wait for the sum of their waits.
//
// Zero waits without a limit, and all callers wait behind it. d must not be negative.
// Waiting for another migration to end is not limited: nobody who decides waits behind that.
func WithLockTimeout(d time.Duration) Option {
	return func(o *options) { o.lockTimeout = d }
}

// WaitForServer makes [Up] try again, about once a second, while the server cannot be
// reached, until the context ends: for a service that starts before its database does.
// Any other error, such as a wrong password, is returned at once.
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

// pending are the migrations to apply, in order: the optional ones last, so that one that
// is refused never stands in the way of another. An optional one that was refused at
// first may have a lower version than one that is applied.
//
// It returns none for a database that a newer release has migrated: how ours would fare
// there is not tested.
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
