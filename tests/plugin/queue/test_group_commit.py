"""Group commit by itself: who shares whose transaction, and who gets which result."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.queue.group_commit import GROUP_BYTES, GROUP_ROWS, Group, GroupCommit
from flowactions_plugin.queue.items import Item
from flowactions_plugin.storage.waiting import is_unconfirmed
from tests.waiting import until


def an_item(name: str) -> Item:
    """Make a row that is as large as its name."""
    return Item({"id": name, "body": name.encode(), "headers": "", "url": ""})


def names(items: Sequence[Item]) -> list[str]:
    return [each.row["id"] for each in items]


class Transactions:
    """Stands in for a database: each transaction waits until it may begin, and until it may commit."""

    def __init__(self, *, is_interruptible: bool = True) -> None:
        self.may_begin = asyncio.Event()
        self.may_commit = asyncio.Event()
        self.begun: list[list[str]] = []
        self.committed: list[list[str]] = []
        self.cancelled = 0
        self.failing: Callable[[Sequence[str]], Exception | None] = lambda items: None
        self.groups = GroupCommit(self.write, lambda: is_interruptible)

    async def write(self, group: Group) -> None:
        try:
            await asyncio.sleep(0)
            await self.may_begin.wait()
            items = names(group.begin())
            self.begun.append(items)
            await self.may_commit.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if (error := self.failing(items)) is not None:
            raise error
        self.committed.append(items)

    def go(self) -> None:
        self.may_begin.set()
        self.may_commit.set()

    async def call(self, *items: str) -> list[asyncio.Task[None]]:
        """Have each item written by a caller of its own; they have all come when this returns."""
        calls = [asyncio.create_task(self.groups.write(an_item(item))) for item in items]
        await asyncio.sleep(0)
        return calls


async def results(calls: Sequence[Awaitable[None]]) -> list[BaseException | None]:
    return await asyncio.gather(*calls, return_exceptions=True)


async def test_a_lone_caller_writes_itself() -> None:
    """No task and no timer come between a caller that is alone and its transaction."""
    tasks: list[asyncio.Task[object] | None] = []

    async def write(group: Group) -> None:
        tasks.append(asyncio.current_task())

    coroutine = GroupCommit(write, lambda: True).write(an_item("a"))
    with pytest.raises(StopIteration):
        coroutine.send(None)  # to its end, without ever waiting
    assert tasks == [asyncio.current_task()]


def test_what_was_under_way_in_a_closed_loop_holds_nobody_up() -> None:
    """It does not end any more: a host may open its next lifespan in another loop."""
    transactions = Transactions()
    left = [transactions.groups.write(an_item(name)) for name in ("writes", "waits")]

    async def begin() -> None:
        for each in left:
            each.send(None)

    async def again() -> None:
        transactions.go()
        async with asyncio.timeout(300):
            await transactions.groups.write(an_item("next"))

    asyncio.run(begin())
    asyncio.run(again())
    for each in left:
        each.close()
    assert transactions.committed == [["next"]]


async def test_callers_that_come_meanwhile_share_the_next_transaction() -> None:
    """In the order in which they came; nobody returns before the commit that holds its item."""
    transactions = Transactions()
    first = await transactions.call("a")
    others = await transactions.call("b", "c", "d")
    transactions.may_begin.set()
    await until(lambda: transactions.begun == [["a"]])
    assert not any(call.done() for call in [*first, *others])
    transactions.may_commit.set()
    await first[0]
    assert not any(call.done() for call in others)
    assert await results(others) == [None, None, None]
    assert transactions.committed == [["a"], ["b", "c", "d"]]


async def test_callers_that_come_again_and_again_stay_together() -> None:
    """Those whose transaction has just committed share the next one, too."""
    transactions = Transactions()
    transactions.go()

    async def caller(name: str) -> None:
        for number in range(10):
            await transactions.groups.write(an_item(f"{name}{number}"))

    await asyncio.gather(*(caller(name) for name in "abcdefgh"))
    assert len(transactions.committed) <= 12
    written = [item for items in transactions.committed for item in items]
    assert len(written) == len(set(written)) == 80
    for name in "abcdefgh":
        assert [item for item in written if item[0] == name] == [f"{name}{number}" for number in range(10)]


async def test_groups_are_bounded() -> None:
    """In items and in bytes; what is larger than a group is written alone."""
    transactions = Transactions()
    first = await transactions.call("a")
    many = await transactions.call(*(str(number) for number in range(GROUP_ROWS + 1)))
    large = await transactions.call("x" * (GROUP_BYTES - 10), "y" * 20, "z" * (2 * GROUP_BYTES), "b")
    transactions.go()
    assert set(await results([*first, *many, *large])) == {None}
    assert [len(items) for items in transactions.committed] == [1, GROUP_ROWS, 2, 1, 1, 1]


async def test_an_error_falls_back_to_one_by_one() -> None:
    """Each caller gets the result of its own item, whatever the error of the group was."""
    transactions = Transactions()

    def fail(items: Sequence[str]) -> Exception | None:
        return ValueError("bad") if "bad" in items else None

    transactions.failing = fail
    first = await transactions.call("a")
    others = await transactions.call("b", "bad", "c")
    transactions.go()
    found = await results([*first, *others])
    assert [type(each) for each in found] == [type(None), type(None), ValueError, type(None)]
    assert sorted(transactions.committed) == [["a"], ["b"], ["c"]]


@pytest.mark.parametrize("end", ["fails", "is cancelled"])
@pytest.mark.parametrize("is_unsure", [True, False])
async def test_what_a_group_may_have_written_is_not_denied_by_what_comes_after(
    end: str, is_unsure: bool
) -> None:
    """Its items are written again one by one; whether that fails or does not even begin, they may be there."""
    transactions = Transactions()

    def fail(items: Sequence[str]) -> Exception:
        error = StorageUnavailable("the connection was lost")
        error.may_be_written = is_unsure and len(items) > 1
        if len(items) > 1:
            transactions.may_begin.clear()
        return error

    async def is_unsure_of(item: str) -> bool:
        try:
            await transactions.groups.write(an_item(item))
        except asyncio.CancelledError as exc:
            return is_unconfirmed(exc)
        except StorageUnavailable as exc:
            return exc.may_be_written
        raise AssertionError

    transactions.failing = fail
    first = await transactions.call("a")
    others = [asyncio.create_task(is_unsure_of(item)) for item in ("b", "c")]
    await asyncio.sleep(0)
    transactions.go()
    await until(lambda: not transactions.may_begin.is_set())
    await until(lambda: len(transactions.groups._tasks) == len(others))  # each is written again by itself
    if end == "fails":
        transactions.go()
    else:
        for caller in others:
            caller.cancel()
    await results(first)
    assert await asyncio.gather(*others) == [is_unsure] * 2


async def test_an_error_after_the_deadline_is_everybodys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Callers that have waited as long as one waits are not made to wait again."""
    monkeypatch.setattr("flowactions_plugin.storage.sqlite.WAIT_SECONDS", 0)
    transactions = Transactions()
    transactions.failing = lambda items: StorageUnavailable("away")
    first = await transactions.call("a")
    others = await transactions.call("b", "c")
    transactions.go()
    assert {type(each) for each in await results([*first, *others])} == {StorageUnavailable}
    assert transactions.begun == [["a"], ["b", "c"]]


@pytest.mark.parametrize("end", ["fails", "is cancelled"])
async def test_the_error_of_the_first_is_not_the_others(end: str) -> None:
    """A transaction that fails, or whose caller is cancelled, does not keep those behind it waiting."""
    transactions = Transactions()
    transactions.failing = lambda items: ValueError("bad") if "a" in items else None
    first = await transactions.call("a")
    others = await transactions.call("b", "c")
    if end == "is cancelled":
        first[0].cancel()
    transactions.go()
    found = await results([*first, *others])
    assert isinstance(found[0], asyncio.CancelledError if end == "is cancelled" else ValueError)
    assert found[1:] == [None, None]
    assert transactions.committed == [["b", "c"]]
    # The next caller is alone again.
    await until(lambda: transactions.groups._current is None)


class TestCancelled:
    @pytest.mark.parametrize("is_interruptible", [True, False])
    async def test_before_it_is_in_a_group(self, *, is_interruptible: bool) -> None:
        """It ends at once, and its item is not written."""
        transactions = Transactions(is_interruptible=is_interruptible)
        first = await transactions.call("a")
        others = await transactions.call("b", "c", "d")
        others[1].cancel()
        assert isinstance((await results(others[1:2]))[0], asyncio.CancelledError)
        transactions.go()
        assert await results([*first, others[0], others[2]]) == [None, None, None]
        assert transactions.committed == [["a"], ["b", "d"]]

    @pytest.mark.parametrize("is_interruptible", [True, False])
    async def test_before_its_transaction_has_begun(self, *, is_interruptible: bool) -> None:
        """The same holds for one whose group waits for a connection or for the lock."""
        transactions = Transactions(is_interruptible=is_interruptible)
        transactions.go()
        first = await transactions.call("a")
        await first[0]
        transactions.may_begin.clear()
        first = await transactions.call("a2")
        others = await transactions.call("b", "c")
        first[0].cancel()
        await results(first)
        await asyncio.sleep(0.01)  # the group of the others waits to begin
        others[0].cancel()
        assert isinstance((await results(others[:1]))[0], asyncio.CancelledError)
        transactions.may_begin.set()
        await others[1]
        assert transactions.committed == [["a"], ["c"]]

    async def test_in_a_transaction_that_can_be_interrupted(self) -> None:
        """It ends at once; the others' items are written."""
        transactions = Transactions()
        transactions.may_begin.set()
        first, others = await self._begun(transactions)
        others[0].cancel()
        assert isinstance((await results(others[:1]))[0], asyncio.CancelledError)
        assert transactions.cancelled == 0
        transactions.go()
        assert await results([*first, others[1]]) == [None, None]

    async def test_all_in_a_transaction_that_can_be_interrupted(self) -> None:
        """When nobody waits for it any more, the transaction is cancelled."""
        transactions = Transactions()
        transactions.may_begin.set()
        _, others = await self._begun(transactions)
        for call in others:
            call.cancel()
        await results(others)
        await until(lambda: transactions.cancelled == 1)
        transactions.go()
        await transactions.groups.write(an_item("later"))
        assert transactions.committed[-1] == ["later"]

    async def test_in_a_transaction_that_cannot_be_interrupted(self) -> None:
        """It waits until the transaction has ended, however often it is cancelled."""
        transactions = Transactions(is_interruptible=False)
        transactions.may_begin.set()
        _, others = await self._begun(transactions)
        for _ in range(3):
            others[0].cancel()
            await asyncio.sleep(0)
            assert not others[0].done()
        transactions.go()
        found = await results(others)
        assert isinstance(found[0], asyncio.CancelledError)
        assert found[1] is None
        assert transactions.committed[-1] == ["b", "c"]

    @staticmethod
    async def _begun(transactions: Transactions) -> tuple[list[asyncio.Task[None]], list[asyncio.Task[None]]]:
        """Give a first caller that is through, and two others whose transaction has begun."""
        first = await transactions.call("a")
        others = await transactions.call("b", "c")
        transactions.may_commit.set()
        await first[0]
        transactions.may_commit.clear()
        await until(lambda: ["b", "c"] in transactions.begun)
        return first, others


async def test_a_transaction_that_hangs_holds_up_nobody_else() -> None:
    """Callers that have waited a moment get a transaction beside it."""
    transactions = Transactions()
    hanging = await transactions.call("hangs")
    group = await transactions.call("b", "c")
    await until(lambda: len(transactions.groups._tasks) == 1)
    later = await transactions.call("d")
    await until(lambda: len(transactions.groups._tasks) == 2)
    transactions.go()
    assert set(await results([*hanging, *group, *later])) == {None}
    assert sorted(transactions.committed) == [["b", "c"], ["d"], ["hangs"]]


def test_another_event_loop() -> None:
    """What a loop that was closed has left behind does not stop the next one."""
    never = asyncio.Event

    async def write(group: Group) -> None:
        if "hangs" in names(group.begin()):
            await never().wait()

    groups = GroupCommit(write, lambda: True)

    async def abandoned() -> None:
        loop = asyncio.get_running_loop()
        loop.create_task(groups.write(an_item("hangs")))  # noqa: RUF006  abandoned on purpose
        await asyncio.sleep(0)
        assert groups._current is not None  # its end is never heard of

    asyncio.run(abandoned())
    asyncio.run(asyncio.wait_for(groups.write(an_item("b")), 300))
