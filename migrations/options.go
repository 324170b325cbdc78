package migrations

import "log/slog"

// Option changes how [Up], [Down] and [DownTo] work.
type Option func(*options)

type options struct {
	log                   *slog.Logger
	withoutExclusionRange bool
}

// WithLogger says at level Info what was migrated, once it is committed. Without
// it, or with nil, nothing is said.
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

func newOptions(opts []Option) options {
	o := options{log: slog.New(slog.DiscardHandler)}
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
