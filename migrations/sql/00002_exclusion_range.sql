-- The strategy exclusion_range: one row per grant, and a constraint that lets no two grants of a
-- key overlap. To compare text in a GiST index needs the extension btree_gist. It comes with
-- PostgreSQL, but this role may not be allowed to create it: then this migration fails, and no
-- other does.
--
-- The extension belongs to the database, not to pglimit. It may be in any schema, because nothing
-- here names its operators. It is created in public if it is missing: in the schema pglimit, a dump
-- without that schema could not be restored. Down leaves it, because others may use it by then.

-- +goose Up
-- +goose StatementBegin
-- If an administrator has created the extension, do not even try to: some hosts refuse "create
-- extension if not exists" to other roles although the extension exists.
do $$
begin
    if not exists (select from pg_catalog.pg_extension where extname = 'btree_gist') then
        create extension btree_gist with schema public;
    end if;
end
$$;
-- +goose StatementEnd

create table pglimit.exclusion_range (
    key     text collate "C" not null,
    limiter text collate "C" not null,
    during  tstzrange not null,
    constraint possible check ( -- nanoseconds in a bigint
        during <@ tstzrange '[1970-01-01 00:00+00, 2262-01-01 00:00+00)' and not isempty(during)),
    constraint exclusion_range_no_overlap exclude using gist (key with =, limiter with =, during with &&)
) using heap with (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_vacuum_cost_delay = 0
);
-- There is no primary key. Without this, a publication for all tables would refuse every delete.
alter table pglimit.exclusion_range replica identity full;

-- The state of this strategy, for a person in psql.
create view pglimit.ranges as
select limiter, key, full_at <= now as available, lower(during) as last_taken_at, full_at
from (
    -- A range that begins ahead of the clock was inserted before the clock stepped back: it counts as
    -- beginning now.
    select limiter, key, during, now, case when lower(during) > now + interval '10 ms'
        then now + (upper(during) - lower(during)) else upper(during) end as full_at
    from (select clock_timestamp() as now offset 0) clock
    cross join (
        select distinct on (key, limiter) key, limiter, during
        from pglimit.exclusion_range
        order by key, limiter, during desc
    ) latest
) r;

-- +goose Down
drop view pglimit.ranges;
drop table pglimit.exclusion_range;
