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
    "due": Rule(f"{_QUEUE}.claims.ClaimStore.claim", "crashes", "before its time"),
    "no live lease": Rule(f"{_QUEUE}.claims.ClaimStore.claim", "crashes", "in flight"),
    "expired leases": Rule(f"{_QUEUE}.claims.ClaimStore.claim", "crashes", "lost"),
    "grace": Rule(f"{_QUEUE}.claims.Contact.grace", "outages", "sent again"),
    "a claim waits": Rule(f"{_QUEUE}.claims.ClaimStore.found", "waits", "sent again"),
    "no pause": Rule(f"{_QUEUE}.claims.ClaimStore.claim", "pauses", "although its destination is paused"),
    "a reclaim is no attempt": Rule(f"{_QUEUE}.claims.ClaimStore.claim", "crashes", "dead without"),
    "lanes in turn": Rule(f"{_QUEUE}.lanes.Lanes.asks", "lanes", "left a row behind"),
    "turns go on": Rule(f"{_QUEUE}.lanes.Lanes.asks", "organizations", "left a row behind"),
    "looks": Rule(f"{_QUEUE}.claims.ClaimStore.look", "signals", "lost"),
    "one grant": Rule(f"{_QUEUE}.probes.Probes.claim", "probes", "more attempts"),
    "lease from before": Rule(f"{_QUEUE}.claims.ClaimStore.claim", "stalls", "in flight"),
    "one copy": Rule(f"{_QUEUE}.hand.Hand.take", "stalls", "a row twice"),
    "waiting copies": Rule(f"{_QUEUE}.hand.Hand.take", "stalls", "a row twice"),
    "written tokens": Rule(f"{_QUEUE}.hand.Hand.again", "stalls", "in flight"),
    "room in the lease": Rule(f"{_QUEUE}.rules.Timing.is_too_late", "stalls", "in flight"),
    "latest end": Rule("flowactions_plugin.egress.sender.Sender.send", "stalls", "in flight"),
    "token": Rule(f"{_QUEUE}.outcomes.OutcomeStore.complete", "crashes", "changes the row"),
    "settled": Rule(f"{_QUEUE}.outcomes.OutcomeStore.complete", "crashes", "believes"),
    "outcomes are kept": Rule(f"{_QUEUE}.completer.Completer.write", "outages", "sent again"),
    "cap": Rule(f"{_QUEUE}.rules.transition", "kills", "more attempts"),
    "counts are cleared": Rule(f"{_QUEUE}.outcomes.OutcomeStore.complete", "kills", "dead without"),
    "begun is written": Rule(f"{_QUEUE}.claims.ClaimStore.begin_quarantined", "a row that kills", "lost"),
    "rounds": Rule(f"{_QUEUE}.executor.Executor.execute_alone", "kills", "dead without"),
    "paused rows go back": Rule(f"{_QUEUE}.claims.ClaimStore.withdrawn", "pauses", "although"),
    "no pause for new rows": Rule(f"{_QUEUE}.items.write_items", "new rows and pauses", "although"),
    "one copy of new rows": Rule(f"{_QUEUE}.hand.Hand.take", "new rows", "a row twice"),
    "lease from before for new rows": Rule(
        f"{_QUEUE}.claims.ClaimStore.claim_with_enqueue", "new rows", "in flight"
    ),
}
"""What may be left out."""

CODE: Final = {
    "claim": f"{_QUEUE}.claims.ClaimStore.claim",
    "ask": f"{_QUEUE}.claims.ClaimStore.claim",
    "claiming": f"{_QUEUE}.claims.ClaimStore.claim",
    "look": f"{_QUEUE}.claims.ClaimStore.look",
    "wake": f"{_QUEUE}.continuous.ContinuousClaims.wake",
    "probe": f"{_QUEUE}.probes.Probes.claim",
    "execute": f"{_QUEUE}.executor.Executor.execute",
    "send": "flowactions_plugin.egress.sender.Sender.send",
    "complete": f"{_QUEUE}.outcomes.OutcomeStore.complete",
    "remove": f"{_QUEUE}.lanes.Lanes.remove",
    "withdrawn": f"{_QUEUE}.claims.ClaimStore.withdrawn",
    "give_back": f"{_QUEUE}.executor.Executor.abandon",
    "ends": f"{_QUEUE}.outcomes.OutcomeStore._end",
    "claim_quarantined": f"{_QUEUE}.claims.ClaimStore.claim_quarantined",
    "begin_quarantined": f"{_QUEUE}.claims.ClaimStore.begin_quarantined",
    "execute_alone": f"{_QUEUE}.executor.Executor.execute_alone",
    "pause": "flowactions_plugin.operations.port.Operations.pause",
    "resume": "flowactions_plugin.operations.port.Operations.resume",
    "claim_with_enqueue": f"{_QUEUE}.claims.ClaimStore.claim_with_enqueue",
    "take": f"{_QUEUE}.executor.Executor.take",
    "disclaim": f"{_QUEUE}.completer.Completer.disclaim",
    "catch_up": f"{_QUEUE}.executor.Executor.settle",
}
"""The steps of the code. All others are the clock's, and accidents."""
