"""Names for what a jaxpr leaves nameless."""

from __future__ import annotations

import builtins
import keyword
import re
from collections import Counter

_TAKEN = {*dir(builtins), *keyword.kwlist, *keyword.softkwlist, "jax", "jnp", "lax", "np", "base64", "primitives"}

# Where a primitive's own name says little or is long.
_SHORT = {
    "add_any": "add",
    "argmax": "argmax",
    "bitcast_convert_type": "bits",
    "broadcast_in_dim": "wide",
    "concatenate": "joined",
    "conv_general_dilated": "conv",
    "convert_element_type": "cast",
    "div": "ratio",
    "dot_general": "dot",
    "dynamic_slice": "chunk",
    "dynamic_update_slice": "filled",
    "gather": "taken",
    "integer_pow": "power",
    "optimization_barrier": "held",
    "random_bits": "bits",
    "random_wrap": "key",
    "reduce_and": "every",
    "reduce_max": "largest",
    "reduce_min": "least",
    "reduce_or": "some",
    "reduce_prod": "prod",
    "reduce_sum": "total",
    "reshape": "shaped",
    "scan": "scanned",
    "select_n": "chosen",
    "shift_left": "shifted",
    "shift_right_logical": "shifted",
    "slice": "part",
    "squeeze": "squeezed",
    "threefry2x32": "bits",
    "transpose": "turned",
    "triangular_solve": "solved",
    "while": "looped",
}


class Names:
    """Hands out identifiers, each once, none of which hides a keyword, a builtin or an import."""

    def __init__(self) -> None:
        self._used: set[str] = set(_TAKEN)
        self._count: Counter[str] = Counter()

    def claim(self, name: str) -> bool:
        """Takes `name` as it is; False where it is taken."""
        free = name not in self._used
        self._used.add(name)
        return free

    def exact(self, wanted: str) -> str:
        """`wanted` made an identifier, with a number only where it is taken."""
        name = wanted if wanted.isidentifier() else identifier(wanted)
        if name in self._used:
            return self.numbered(name)
        self._used.add(name)
        return name

    def numbered(self, base: str) -> str:
        """`base_1`, `base_2`, ..."""
        while True:
            self._count[base] += 1
            name = f"{base}_{self._count[base]}"
            if name not in self._used:
                self._used.add(name)
                return name

    def of_primitive(self, primitive: str) -> str:
        if primitive == "i":
            return self.exact("i")
        return self.numbered(_SHORT.get(primitive, identifier(primitive).lower()))


def identifier(text: str) -> str:
    """`params['w'][0]` -> `params_w_0`."""
    name = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_") or "x"
    return f"x_{name}" if name[0].isdigit() else name
