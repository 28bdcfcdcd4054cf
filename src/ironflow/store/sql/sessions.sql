-- Live worker processes, and the workflows that were seen or paused.

-- name: open_session
insert into worker_sessions ({session_columns})
values (:session_id, :worker_id, :host, :boot_id, :pid, :process_id, :routes, :slots, :credits, :started_at,
        :heartbeat_at, :expires_at, :lock_path, :lock_device, :lock_inode, :wake_address, :suspect_since, :draining)
on conflict (session_id) do update
set routes = excluded.routes, slots = excluded.slots, credits = excluded.credits, heartbeat_at = excluded.heartbeat_at,
    expires_at = excluded.expires_at, lock_path = excluded.lock_path, lock_device = excluded.lock_device,
    lock_inode = excluded.lock_inode, wake_address = excluded.wake_address, suspect_since = null,
    draining = excluded.draining

-- name: sessions
select {session_columns} from worker_sessions order by started_at, session_id

-- name: pause_workflow
insert into workflow_pauses (org, workflow, paused_at, paused_by) values (:org, :workflow, :now, :actor)
on conflict (org, workflow) do nothing
returning workflow

-- name: resume_workflow
delete from workflow_pauses where org = :org and workflow = :workflow returning workflow

-- name: saw_workflow
insert into workflows_seen (name, version, worker_tags, first_seen_at, seen_at)
values (:name, :version, :worker_tags, :now, :now)
on conflict (name) do update
set version = excluded.version, worker_tags = excluded.worker_tags, seen_at = excluded.seen_at
