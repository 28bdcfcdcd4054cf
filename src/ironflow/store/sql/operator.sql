-- What people change: workflows that are held, keys, and runs that are deleted.

-- name: pause_workflow
insert into workflow_pauses (org, environment, workflow, paused_at, paused_by)
values (:org, :environment, :workflow, :now, :actor)
on conflict (org, environment, workflow) do nothing
returning workflow

-- name: resume_workflow
delete from workflow_pauses where org = :org and environment = :environment and workflow = :workflow returning workflow

-- ---- keys

-- name: add_key
insert into api_keys ({key_columns})
values (:key_id, :org, :environment, :kind, :role, :name, :key_hash, :workflows, :created_at, :created_by, :expires_at,
        :revoked_at, :last_used_at)
on conflict do nothing
returning key_id

-- name: key_by_hash
select {key_columns} from api_keys where key_hash = :key_hash

-- name: keys
select {key_columns} from api_keys where org = :org order by created_at, key_id

-- name: keys_of_all
select {key_columns} from api_keys order by created_at, key_id

-- name: revoke_key
update api_keys set revoked_at = :now
where key_id = :key_id and revoked_at is null
returning org, environment, kind, name

-- ---- deleting runs that have ended: between the passes and their end the journal lets go of the rows of these runs

-- fragment: among_ids
run_id /*postgres: = any(cast(:ids as text[])) */ /*sqlite: in (select value from json_each(:ids)) */

-- name: lock_to_delete
select {run_columns} from runs where run_id = :run_id and org = :org and environment = :environment
/*postgres: for update */

-- Roots that are still as old as they looked. Whoever has one in hand (a reopening, another node that deletes it) keeps
-- it: nobody waits here, so nothing that locks runs in another order can wait for this in turn. The scope is compared
-- as an expression: SQLite would rather walk all runs of it than look up these few.
-- name: lock_expired
select run_id, workflow from runs
where {among_ids} and parent_run_id is null and ended_at <= :ended_before
  and org || '' = :org and environment || '' = :environment
order by run_id
/*postgres: for update skip locked */

-- The runs below these, each with its root. A union of distinct rows ends even where parents run in a circle.
-- name: descendants
with recursive tree (root, run_id) as (
    select run_id, run_id from runs where {among_ids}
    union
    select t.root, c.run_id from tree t cross join runs c where c.parent_run_id = t.run_id
)
select root, run_id from tree where run_id <> root

-- name: lock_ended
select run_id from runs
where ended_at <= :ended_before and {among_ids}
order by run_id
/*postgres: for update skip locked */

-- name: open_passes
/*postgres: insert into retention_passes (run_id) select unnest(cast(:ids as text[])) */
/*sqlite: insert into retention_passes (run_id) select value from json_each(:ids) */

-- name: delete_journals
delete from journal_events where {among_ids}

-- name: delete_payloads
delete from journal_payloads where {among_ids}

-- name: delete_waits_of_runs
delete from waits where {among_ids}

-- name: delete_queue_of_runs
delete from dispatch_queue where {among_ids}

-- name: delete_leases_of_runs
delete from concurrency_leases where {among_ids}

-- name: delete_lanes_of_runs
delete from run_lanes where {among_ids}

-- name: delete_runs
delete from runs where {among_ids}

-- name: close_passes
delete from retention_passes where {among_ids}
