"""Primitives that no axis can be streamed through, each with the reason."""

from __future__ import annotations

from .table import blocked

blocked(
    "devices exchange the array whole",
    *"psum pmax pmin psum_invariant all_gather all_gather_invariant all_to_all reduce_scatter ppermute "
    "ragged_all_to_all pbroadcast pvary axis_index shard_map reshard shard_alike".split(),
)
blocked(
    "memscope can't see into a call of foreign code", *"ffi_call pure_callback io_callback custom_partitioning".split()
)
blocked("a hand-written kernel computes all of it at once", *"pallas_call tpu_custom_call cudnn_fusion".split())
blocked(
    "a fused kernel computes all of it at once",
    *"dot_product_attention_fwd dot_product_attention_bwd scaled_matmul "
    "dot_product_attention_fwd_wrapper dot_product_attention_bwd_wrapper scaled_matmul_wrapper".split(),
)
blocked("references are read and written whole and in order", *"get swap addupdate new_ref freeze empty_ref".split())
