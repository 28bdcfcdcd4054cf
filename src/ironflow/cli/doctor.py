"""`ironflow doctor`: check every invariant on a database, live or at rest."""

from __future__ import annotations

from ironflow.cli import exits, output
from ironflow.cli.database import DbOption, JsonOption, on_store, settings_for
from ironflow.engine import views
from ironflow.store.base import Store


def doctor(db: DbOption = None, json: JsonOption = False) -> None:
    """Check that the database holds what it must; changes nothing. Exits 1 when something is wrong."""

    async def command(store: Store) -> int:
        from ironflow.engine.doctor import examine

        found = await examine(store, ceiling=settings_for(db).recovery_ceiling)
        runs = sum((await store.counts()).values())
        if json:
            output.emit({"database": store.name, "runs": runs, "findings": [views.plain(f) for f in found]})
        else:
            screen = output.screen()
            for finding in found:
                screen.print(finding.rule.ljust(5), style="bold red", end="")
                screen.print(f" {finding.run_id or '-'}  {finding.message}")
            checked = f"{output.count(runs, 'run')} in {store.name}: "
            verdict = output.count(len(found), "finding") if found else "all invariants hold"
            screen.print(checked + verdict, style="red" if found else "green", soft_wrap=True)
        return exits.FAILED if found else exits.OK

    on_store(db, command, as_json=json)
