-- Planted: several keys in one call, each locked in the order of the caller.
create function public.take_in_order(keys text[], token_ns bigint, window_ns bigint) returns bigint
language plpgsql as $$
declare
    k text;
    granted bigint := 0;
begin
    foreach k in array keys loop
        granted := granted + (pglimit.token_bucket_take(k, 'planted', token_ns, window_ns, 1, 1, null))[2];
    end loop;
    return granted;
end
$$
