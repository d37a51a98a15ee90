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
        self._undo: list[tuple[int, list[int]]] = []
        self._problem = problem
        self._bytes = [s.bytes for s in problem.storages]
        self._extra = problem.extra or (0,) * problem.size
        self._starting, self._ending = touched(problem)
        self._loans: list[list[Loan]] = [[] for _ in problem.predecessors]
        for loan in problem.loans:
            self._loans[loan.node].append(loan)
        self._borrowers: dict[int, set[int]] = {}
        for loan in problem.loans:
            self._borrowers.setdefault(loan.borrower, set()).add(loan.node)
        self._started = [False] * len(problem.storages)
        self._left = [len(s.ends) for s in problem.storages]
        self._waiting = [len(before) for before in problem.predecessors]
        self.ready = {node for node, count in enumerate(self._waiting) if not count}

    def step(self, node: int) -> tuple[int, int]:
        """Bytes held while a ready node runs, and the change of what is held after it."""
        new = sum(self._bytes[s] for s in self._starting[node] if not self._started[s])
        freed = sum(self._bytes[s] for s in self._ending[node] if self._left[s] == 1)
        saved = self._saved(node) if self._loans[node] else 0
        return self.held + new + self._extra[node] - saved, new - freed

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
        fresh = (s for s in self._starting[node] if not self._started[s])
        return any(not self._borrowers.get(s, set()) <= {node} for s in fresh)

    def run(self, node: int) -> int:
        """Runs a ready node; gives the bytes held meanwhile."""
        during, change = self.step(node)
        fresh = [s for s in self._starting[node] if not self._started[s]]
        for storage in fresh:
            self._started[storage] = True
        for storage in self._ending[node]:
            self._left[storage] -= 1
        for later in self._problem.successors[node]:
            self._waiting[later] -= 1
            if not self._waiting[later]:
                self.ready.add(later)
        self.held += change
        self.done |= 1 << node
        self.order.append(node)
        self.ready.discard(node)
        self._undo.append((change, fresh))
        return during

    def back(self) -> int:
        """Takes the last node back, and gives it."""
        node = self.order.pop()
        change, fresh = self._undo.pop()
        for storage in fresh:
            self._started[storage] = False
        for storage in self._ending[node]:
            self._left[storage] += 1
        for later in self._problem.successors[node]:
            if not self._waiting[later]:
                self.ready.discard(later)
            self._waiting[later] += 1
        self.held -= change
        self.done ^= 1 << node
        self.ready.add(node)
        return node


def touched(problem: OrderProblem) -> tuple[list[list[int]], list[list[int]]]:
    """For each node, the storages among whose starts it is, and those among whose ends."""
    starting: list[list[int]] = [[] for _ in problem.predecessors]
    ending: list[list[int]] = [[] for _ in problem.predecessors]
    for index, storage in enumerate(problem.storages):
        for node in storage.starts:
            starting[node].append(index)
        for node in storage.ends:
            ending[node].append(index)
    return starting, ending
