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

-- ---- deleting a run that has ended: between the pass and its end the journal lets go of its rows

-- name: lock_to_delete
select {run_columns} from runs where run_id = :run_id and org = :org and environment = :environment
/*postgres: for update */

-- name: open_pass
insert into retention_passes (run_id) values (:run_id)

-- name: delete_journal
delete from journal_events where run_id = :run_id

-- name: delete_payloads
delete from journal_payloads where run_id = :run_id

-- name: delete_waits_of_run
delete from waits where run_id = :run_id

-- name: delete_queue_of_run
delete from dispatch_queue where run_id = :run_id

-- name: delete_lease_of_run
delete from concurrency_leases where run_id = :run_id

-- name: delete_lanes_of_run
delete from run_lanes where run_id = :run_id

-- name: delete_run
delete from runs where run_id = :run_id

-- name: close_pass
delete from retention_passes where run_id = :run_id
