package migrations

// table of the schema pglimit, apart from the version table.
type table struct {
	name     string
	optional bool // comes with the migration exclusion_range
}

// The tables and views of the schema, by purpose. A test compares these lists with the
// catalog of a migrated database.
var (
	// bucketTables hold the state of the strategies, in the order in which every call locks them.
	bucketTables = []table{{name: "token_bucket"}, {name: "token_bucket_answers"}, {name: "token_bucket_blocks"}, {name: "upsert"}, {name: "for_update_nowait"}, {name: exclusionRange, optional: true}, {name: "sliding_window"}, {name: "sliding_log"}, {name: "warm_up"}}

	// permitTables say who holds the places of a key. They are always logged.
	permitTables, permitViews = []table{{name: "permits"}}, []table{{name: "holders"}}

	// jobTables say when the cleanup is due next.
	jobTables = []table{{name: "schedule"}}

	// limitTables are the limits as a table, and their history.
	limitTables = []table{{name: "limits"}, {name: "limits_history"}}

	// instanceTables are the live instances of each limiter.
	instanceTables = []table{{name: "instances"}, {name: "instances_turn"}}

	// topTables are the keys that were denied and granted most.
	topTables, topViews = []table{{name: "top_keys"}}, []table{{name: "top"}}

	// views show the state to a person.
	views = []table{{name: "buckets"}, {name: "blocks"}, {name: "holders"}, {name: "windows"}, {name: "warm_ups"}, {name: "top"}, {name: "ranges", optional: true}}
)
