"""Running a problem's nodes one by one and taking them back, with the bytes held on the way."""

from __future__ import annotations

from .problem import Loan, OrderProblem


class State:
    """What has run so far, and what is held.

    Attributes:
      held: bytes held between the last node and the next.
      done: the nodes that ran, as bits.
      order: the nodes that ran, in turn.
      ready: the nodes that may run next.
    """

    def __init__(self, problem: OrderProblem) -> None:
        self.held = 0
        self.done = 0
        self.order: list[int] = []
        self._problem = problem
        self._bytes = [s.bytes for s in problem.storages]
        self._extra = problem.extra or (0,) * problem.size
        self._starting: list[list[int]] = [[] for _ in problem.predecessors]
        self._ending: list[list[int]] = [[] for _ in problem.predecessors]
        self._new, self._freed = [0] * problem.size, [0] * problem.size  # bytes, were a node to run now
        self._started = [False] * len(problem.storages)
        self._left = [len(s.ends) for s in problem.storages]
        self._last = [sum(s.ends) for s in problem.storages]  # of the ends left: where only one is, it is that one
        # Only where several nodes may start or end a storage does it matter to the others which have run.
        for index, storage in enumerate(problem.storages):
            for node in storage.starts:
                self._new[node] += storage.bytes
                if len(storage.starts) > 1:
                    self._starting[node].append(index)
            if len(storage.ends) == 1:
                self._freed[self._last[index]] += storage.bytes
            else:
                for node in storage.ends:
                    self._ending[node].append(index)
        self._loans: list[list[Loan]] = [[] for _ in problem.predecessors]
        self._borrowers: dict[int, set[int]] = {}
        for loan in problem.ranked_loans:
            self._loans[loan.node].append(loan)
            self._borrowers.setdefault(loan.borrower, set()).add(loan.node)
        self._undo: list[tuple[int, list[int]]] = []
        self._waiting = [len(before) for before in problem.predecessors]
        self.ready = {node for node, count in enumerate(self._waiting) if not count}

    def step(self, node: int) -> tuple[int, int]:
        """Bytes held while a ready node runs, and the change of what is held after it."""
        new = self._new[node]
        saved = self._saved(node) if self._loans[node] else 0
        return self.held + new + self._extra[node] - saved, new - self._freed[node]

    def releasing(self) -> list[int]:
        """The ready nodes after which no more is held than before, in rising order."""
        new, freed = self._new, self._freed
        return sorted([node for node in self.ready if new[node] <= freed[node]])

    def _saved(self, node: int) -> int:
        lent: set[int] = set()
        total = 0
        for loan in self._loans[node]:
            fits = self._left[loan.lender] == 1 and not self._started[loan.borrower]
            if fits and loan.lender not in lent and loan.borrower not in lent:
                lent |= {loan.lender, loan.borrower}
                total += self._problem.saved(loan)
        return total

    def spoils_loan(self, node: int) -> bool:
        """Whether the node starts a storage that might have taken another's place, had another node started it."""
        return any(
            not self._started[s] and s in self._borrowers and self._borrowers[s] != {node} for s in self._starting[node]
        )

    def run(self, node: int) -> None:
        """Runs a ready node."""
        change = self._new[node] - self._freed[node]
        fresh = [s for s in self._starting[node] if not self._started[s]]
        self._start(fresh, True)
        for s in self._ending[node]:
            self._left[s] -= 1
            self._last[s] -= node
            if self._left[s] == 1:
                self._freed[self._last[s]] += self._bytes[s]
        for later in self._problem.successors[node]:
            self._waiting[later] -= 1
            if not self._waiting[later]:
                self.ready.add(later)
        self.held += change
        self.done |= 1 << node
        self.order.append(node)
        self.ready.discard(node)
        self._undo.append((change, fresh))

    def back(self) -> None:
        """Takes the last node back."""
        node = self.order.pop()
        change, fresh = self._undo.pop()
        self._start(fresh, False)
        for s in self._ending[node]:
            if self._left[s] == 1:
                self._freed[self._last[s]] -= self._bytes[s]
            self._left[s] += 1
            self._last[s] += node
        for later in self._problem.successors[node]:
            if not self._waiting[later]:
                self.ready.discard(later)
            self._waiting[later] += 1
        self.held -= change
        self.done ^= 1 << node
        self.ready.add(node)

    def _start(self, storages: list[int], started: bool) -> None:
        for s in storages:
            self._started[s] = started
            size = -self._bytes[s] if started else self._bytes[s]
            for node in self._problem.storages[s].starts:
                self._new[node] += size
