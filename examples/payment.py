"""Take an order: reserve, charge, ship, mail; and what each step promises when it is cut off.

Four kinds of steps, because money, parcels and mails tolerate a repetition differently:

  reserve   may run again: it finds its own reservation (and is undone if the order fails)
  charge    may run again: the bank recognises the idempotency key and charges once
  ship      is asked about: after a crash, `reconcile` looks whether the parcel left
  mail      never runs again: two mails are worse than none, so the order says that it may not have been sent

The "bank" and the others are folders of files here, so that you can look at what they saw.

    ironflow run examples/payment.py:take_order --input '{"order_id": "A-1", "cents": 4200}'
    ironflow run examples/payment.py:take_order --input '{"order_id": "A-2", "cents": 4200, "card": "declined"}'

Give `"linger": 3` as well, kill it after it has acted, and give the command again: nothing happens twice.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from ironflow import (
    Context,
    Done,
    NonRetryableError,
    NotDone,
    StepInterrupted,
    step,
    step_info,
    workflow,
)


@dataclass
class Order:
    order_id: str
    cents: int
    card: str = "good"
    shop: str = "shop-out"
    linger: float = 0  # seconds for which charge, ship and mail stay on after they have acted: time to kill them in


@dataclass
class Confirmation:
    order_id: str
    charge: str
    parcel: str
    mailed: bool


@workflow
async def take_order(ctx: Context, order: Order) -> Confirmation:
    """Every line may be the last of this process; the next one continues it."""
    # What undoes a step is registered before the step. The registration joins the commit that starts it, so whenever
    # the effect may exist, its undoing is recorded. Registered after it, the undoing would be missing in one case: when
    # the step is cut off after its effect, or the run is cancelled while it executes, the code never gets to that line.
    # So an undoing must cope with a step that did nothing, and finds by the order's id what there is to undo.
    ctx.compensate(unreserve, order)
    await reserve(order)
    ctx.compensate(refund, order)
    charge_id = await charge(order)
    parcel = await ship(order)
    try:
        await mail(order)
        mailed = True
    except StepInterrupted:
        ctx.warn(f"order {order.order_id}: the mail may or may not have been sent")
        mailed = False
    return Confirmation(order.order_id, charge_id, parcel, mailed)


@step
def reserve(order: Order) -> None:
    """Named after the order, so a repetition finds what it did."""
    write_once(order.shop, f"reserved-{order.order_id}", "1")


@step
def unreserve(order: Order) -> None:
    Path(order.shop, f"reserved-{order.order_id}").unlink(missing_ok=True)


@step(kind="connector")
def charge(order: Order) -> str:
    """The key is the same whenever this try is repeated, so the bank can tell a repetition from a second
    purchase.

    A new try after an error the bank answered with would get a new key: retry only what surely was not
    charged.
    """
    if order.card != "good":
        raise NonRetryableError(f"the bank declined the card of order {order.order_id}")
    key = step_info().idempotency_key
    write_once(order.shop, f"charged-{key[:16]}", f"{order.order_id} {order.cents}")
    time.sleep(order.linger)
    return key[:16]


@step
def refund(order: Order) -> None:
    """Asks the bank what was charged for the order, which may be nothing: it was registered before the charge."""
    for charged in Path(order.shop).glob("charged-*"):
        if charged.read_text(encoding="utf-8").split()[0] == order.order_id:
            charge_id = charged.name.removeprefix("charged-")
            write_once(order.shop, f"refunded-{charge_id}", f"{order.order_id} {order.cents}")


@step
def ship(order: Order) -> str:
    write_once(order.shop, f"parcel-{order.order_id}", "on its way")
    time.sleep(order.linger)
    return f"parcel-{order.order_id}"


@ship.reconcile
def has_shipped(order: Order) -> Done[str] | NotDone:
    """Asked instead of running `ship` again blindly. With no answer to be had it would say `Unknown()`."""
    parcel = Path(order.shop, f"parcel-{order.order_id}")
    return Done(parcel.name) if parcel.exists() else NotDone()


@step(at_most_once=True)
def mail(order: Order) -> None:
    with Path(order.shop, "mails").open("a", encoding="utf-8") as mails:
        mails.write(f"thank you for order {order.order_id}\n")
    time.sleep(order.linger)


def write_once(shop: str, name: str, text: str) -> None:
    """What a service with idempotent requests does: the first one counts, repetitions change nothing."""
    Path(shop).mkdir(parents=True, exist_ok=True)
    try:
        with Path(shop, name).open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        pass
