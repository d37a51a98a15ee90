"""Maximum flow and minimum cut in integers of any size, with a warm start: a cut changed a little costs little."""

from __future__ import annotations

UNCUT = 1 << 62
"""The capacity of an edge that no minimum cut goes through."""

SOURCE, SINK = 0, 1


class Network:
    """A flow network that keeps its flow, so that it can be taken up again (Dinic's method).

    Attributes:
      value: of the flow so far.
    """

    def __init__(self, size: int) -> None:
        self.value = 0
        self._edges: list[list[int]] = [[] for _ in range(size)]  # of each node; `e ^ 1` is the edge `e` turned round
        self._head: list[int] = []
        self._left: list[int] = []  # capacity that is left
        self._sources = [SOURCE]
        self._sinks = [SINK]

    def add_node(self) -> int:
        self._edges.append([])
        return len(self._edges) - 1

    def add_edge(self, tail: int, head: int, capacity: int) -> None:
        for start, end, left in ((tail, head, capacity), (head, tail, 0)):
            self._edges[start].append(len(self._head))
            self._head.append(end)
            self._left.append(left)

    def forced(self, node: int, *, source: bool) -> Network:
        """The same network and flow with the node on the source's side of the cut, or else on the sink's."""
        other = Network(0)
        other.value, other._edges, other._head, other._left = self.value, self._edges, self._head, self._left.copy()
        other._sources = [*self._sources, node] if source else self._sources
        other._sinks = self._sinks if source else [*self._sinks, node]
        return other

    def maximise(self, stop: int = UNCUT) -> int:
        """Raises the flow to its maximum, or above `stop`; gives its value."""
        while self.value <= stop:
            away = self._distances()
            if all(away[source] < 0 for source in self._sources):
                break
            for source in self._sources:
                if away[source] >= 0:
                    self._fill(source, away)
        return self.value

    def _distances(self) -> list[int]:
        """How many edges lead from each node to a sink, -1 where none do; no further than to the first source."""
        edges, head, left = self._edges, self._head, self._left
        away = [-1] * len(edges)
        for sink in self._sinks:
            away[sink] = 0
        queue = [*self._sinks]
        for node in queue:
            if node in self._sources:
                break
            further = away[node] + 1
            for e in edges[node]:
                if left[e ^ 1] and away[head[e]] < 0:
                    away[head[e]] = further
                    queue.append(head[e])
        return away

    def _fill(self, source: int, away: list[int]) -> None:
        """Fills every path from the source by which each edge leads nearer to a sink."""
        edges, head, left = self._edges, self._head, self._left
        at = [0] * len(edges)
        path: list[int] = []
        node = source
        while True:
            if node in self._sinks:
                amount = min(left[e] for e in path)
                for e in path:
                    left[e] -= amount
                    left[e ^ 1] += amount
                self.value += amount
                full = next(i for i, e in enumerate(path) if not left[e])
                node = head[path[full] ^ 1]
                del path[full:]
                continue
            nearer = away[node] - 1
            while at[node] < len(edges[node]):
                e = edges[node][at[node]]
                if left[e] and away[head[e]] == nearer:
                    path.append(e)
                    node = head[e]
                    break
                at[node] += 1
            else:
                if not path:
                    return
                away[node] = -1
                node = head[path.pop() ^ 1]

    def source_side(self) -> set[int]:
        """The side of the sources at the minimum cut where it is smallest."""
        return self._reached(self._sources, forward=True)

    def sink_side(self) -> set[int]:
        """The side of the sinks at the minimum cut where it is smallest."""
        return self._reached(self._sinks, forward=False)

    def _reached(self, starts: list[int], *, forward: bool) -> set[int]:
        reached = set(starts)
        queue = [*starts]
        for node in queue:
            for e in self._edges[node]:
                if self._left[e if forward else e ^ 1] and self._head[e] not in reached:
                    reached.add(self._head[e])
                    queue.append(self._head[e])
        return reached
