"""The rules of the model that may be left out, and the code that each rule and each step is named after (decision 71)."""

from __future__ import annotations

from typing import Final, NamedTuple

_QUEUE: Final = "flowactions_plugin.queue"


class Rule(NamedTuple):
    """A rule that may be left out.

    Attributes:
        code: what does it.
        world: the one in which the model shows what happens without it.
        breaks: words of the promise that is broken then.
    """

    code: str
    world: str
    breaks: str


RULES: Final = {
    "due": Rule(f"{_QUEUE}.due.due_rows", "crashes", "before its time"),
    "no live lease": Rule(f"{_QUEUE}.due.free", "crashes", "in flight"),
    "expired leases": Rule(f"{_QUEUE}.due.free", "crashes", "lost"),
    "no doubt": Rule(f"{_QUEUE}.due.undoubted", "outages", "sent again"),
    "no pause": Rule(f"{_QUEUE}.due.unpaused", "pauses", "although its destination is paused"),
    "a reclaim is no attempt": Rule(f"{_QUEUE}.claims.claiming", "crashes", "dead without"),
    "turns": Rule(f"{_QUEUE}.claims.turn_rows", "organizations", "left a row behind"),
    "turns at a destination": Rule(f"{_QUEUE}.claims.eligible", "one destination", "left a row behind"),
    "a turn each": Rule(f"{_QUEUE}.owners.turn_organizations", "organizations", "left a row behind"),
    "share": Rule(f"{_QUEUE}.claims.eligible", "destinations", "left a row behind"),
    "lease from before": Rule(f"{_QUEUE}.claim_store.ClaimStore.claim", "stalls", "in flight"),
    "one copy": Rule(f"{_QUEUE}.completer.Completer.not_in_hand", "stalls", "a row twice"),
    "waiting copies": Rule(f"{_QUEUE}.executor.Executor.admit", "stalls", "a row twice"),
    "written tokens": Rule(f"{_QUEUE}.completer.Completer.not_in_hand", "stalls", "in flight"),
    "groups": Rule(f"{_QUEUE}.suspects.Suspects.admit", "a row that kills", "quarantine"),
    "surplus first": Rule(f"{_QUEUE}.executor.Executor.admit", "a row that kills", "quarantine"),
    "room in the lease": Rule(f"{_QUEUE}.rules.Timing.is_too_late", "stalls", "in flight"),
    "latest end": Rule("flowactions_plugin.egress.sender.Sender.send", "stalls", "in flight"),
    "token": Rule(f"{_QUEUE}.outcomes.completing", "crashes", "changes the row"),
    "settled": Rule(f"{_QUEUE}.outcome_store.OutcomeStore.complete", "crashes", "believes"),
    "outcomes are kept": Rule(f"{_QUEUE}.completer.Completer.write", "outages", "sent again"),
    "cap": Rule(f"{_QUEUE}.rules.transition", "kills", "more attempts"),
    "counts are cleared": Rule(f"{_QUEUE}.outcomes.completing", "kills", "dead without"),
    "alone": Rule(f"{_QUEUE}.worker.ClaimStrategy.quiesce", "a row that kills", "quarantine"),
    "begun is written": Rule(
        f"{_QUEUE}.recovery_store.RecoveryStore.begin_quarantined", "a row that kills", "lost"
    ),
    "rounds": Rule(f"{_QUEUE}.executor.Executor.execute_alone", "kills", "dead without"),
    "paused rows go back": Rule(
        f"{_QUEUE}.continuous.ContinuousClaims._give_back_withdrawn", "pauses", "although"
    ),
    "no pause for new rows": Rule(f"{_QUEUE}.new_rows._enqueuing_claimed", "new rows and pauses", "although"),
    "one copy of new rows": Rule(f"{_QUEUE}.executor.Executor.take", "new rows", "a row twice"),
    "lease from before for new rows": Rule(
        f"{_QUEUE}.claim_store.ClaimStore.claim_with_enqueue", "new rows", "in flight"
    ),
    "pauses are locked": Rule("flowactions_plugin.bulk.pauses.Pauses.park", "pauses", "lost"),
}
"""What may be left out."""

CODE: Final = {
    "claim": f"{_QUEUE}.claim_store.ClaimStore.claim",
    "ask": f"{_QUEUE}.claim_store.ClaimStore.claim",
    "claiming": f"{_QUEUE}.claims.claiming",
    "admit": f"{_QUEUE}.executor.Executor.admit",
    "execute": f"{_QUEUE}.executor.Executor.execute",
    "send": "flowactions_plugin.egress.sender.Sender.send",
    "complete": f"{_QUEUE}.outcome_store.OutcomeStore.complete",
    "overdue": f"{_QUEUE}.slots.Slots.overdue",
    "remove": f"{_QUEUE}.slots.Slots.remove",
    "give_back": f"{_QUEUE}.outcome_store.OutcomeStore.give_back",
    "ends": f"{_QUEUE}.outcome_store.OutcomeStore.ends",
    "claim_quarantined": f"{_QUEUE}.recovery_store.RecoveryStore.claim_quarantined",
    "begin_quarantined": f"{_QUEUE}.recovery_store.RecoveryStore.begin_quarantined",
    "execute_alone": f"{_QUEUE}.executor.Executor.execute_alone",
    "pause": "flowactions_plugin.bulk.pauses.Pauses.pause",
    "park": "flowactions_plugin.bulk.pauses.Pauses.park",
    "resume": "flowactions_plugin.bulk.pauses.Pauses.resume",
    "make_due": "flowactions_plugin.bulk.pauses.Pauses.make_due",
    "claim_with_enqueue": f"{_QUEUE}.claim_store.ClaimStore.claim_with_enqueue",
    "take": f"{_QUEUE}.executor.Executor.take",
    "disclaim": f"{_QUEUE}.completer.Completer.disclaim",
    "catch_up": f"{_QUEUE}.executor.Executor.catch_up",
}
"""The steps of the code. All others are the clock's, and accidents."""
