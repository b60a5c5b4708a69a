"""From the name of a kernel, or of an operator, to what it does. Pure.

Only the function's own name decides: template arguments and namespaces mislead (`TensorConversionOp` is no convolution,
and `fbgemm_gpu::permute` no product). Convolutions and matrix products are one class, as cuDNN runs convolutions by
kernels that are called gemm, fft2d or Kernel2. Where a name tells nothing, as that of a compiler's fusion may, the
compiled program is asked (`content` of KernelTime); what nobody knows is `other`, and never guessed.
"""

import re
from functools import lru_cache

from harness.results.record import KernelClass

_GENERIC = frozenset({"kernel", "kernel2", "device_kernel", "cuteop", "run", "launch"})
"""Names of functions whose first template argument is what they are."""
_ELEMENTWISE = re.compile(r"elementwise_kernel|index_elementwise|unrolled_elementwise|vectorized_elementwise")
_COPY_FUNCTOR = re.compile(r"(direct|float16|bfloat16|float8|conj|neg)_?copy_kernel|bfloat16tofloat|LoadWithCast.*copy")

_COMMUNICATION = re.compile(
    r"^nccl|rccl|nvshmem|all_?reduce|all-reduce|all_?gather|all-gather|reduce_?scatter|reduce-scatter|all_?to_?all"
    r"|all-to-all|sendrecv|send_recv|collective-?_?permute|collective-broadcast|cross_device_reduce|multimem_|^gloo|^c10d"
    r"|^lsa_|kernel_barrier|^barrier_kernel|exchangesplit"
)
_LAYOUT = re.compile(
    r"^memcpy|^memset|nchwtonhwc|nhwctonchw|nchw2nhwc|nhwc2nchw|nchwto|nhwcto|ndhwc|transpose|permute|catarray|_copy_?(kernel)?$"
    r"|^copy|im2col|col2im|addpadding|extractpadding|tensor_?transform|^wrapped_(copy|concatenate|slice|pad|bitcast)|concatenate"
    r"|^(loop_|input_)?(copy|slice|pad|concatenate|bitcast|reverse|dynamic_update_slice|dynamic-update-slice)(_fusion)?(_?\d+)*$"
    r"|^(dynamic-slice|dynamic-update-slice|slice|pad|concatenate|reverse|reshape|bitcast|copy-start|copy-done)$"
    r"|convert_?layout|reformat|repack|flip_kernel|roll_cuda|triu_tril|^batch_transpose|shuffleintensor|swapdimension"
    r"|vol2col|vol2im|chunk_cat|int4_layout"
)
_AROUND_ATTENTION = re.compile(r"flash_bwd_(convert|dot_do_o)|flash_fwd_splitkv_combine")
"""Sums and conversions before and after its products."""
_PRODUCT = re.compile(
    r"gemm|gemv|gemmk1|conv(?!ert|ersion)|dgrad|wgrad|fprop|wino|fft|splitkreduce|xmma|nvjet|cutlass|^dot|_dot|dot_kernel"
    r"|reduce_1block_kernel|flash|fmha|attention|_mha_|^mha|sdpa|matmul|(^|_)[b]?mm(_|$)|baddbmm|addmm|implicit_convolve"
    r"|cudnn_infer|cudnn_train|scudnn|hcudnn|i8816|cublas|cask|computeoffsets|computeboffsets|kern_precompute|wgmma|bmm_"
    r"|generatewinograd|flip_filter|complex_gemm|magma_|trsm|syrk|(^|_)[cz]?herk|tensorop|cijk_"
)
_TRAFFIC = re.compile(
    r"elementwise|reduce|reduction|softmax|norm|(^|_)bn_|pool|index|gather|scatter|embedding|sort|scan|radix|fill|dropout"
    r"|loss|distribution|philox|random|threefry|rng|arange|iota|multi_?tensor|adam|sgd|lerp|foreach|clamp|where|select"
    r"|cross_entropy|gelu|relu|silu|sigmoid|tanh|activation|bias|fusion|^loop_|^input_|^wrapped_|^triton_|^fused_|compare"
    r"|op_tensor|op_generic_tensor|scalepacked|pointwise|add|mul|sub|div|exp|log|sqrt|pow|max|min|sum|mean|argmax|cum|topk"
    r"|unique|nonzero|histogram|cast|convert|broadcast|map|call_function|one_hot|grid_sample|upsample|interpolate"
    r"|masked|batch_norm|layer_norm|mse|nll|not_equal|logical|rsqrt|negate|sign|floor|remainder|devicereduce|deviceselect"
    r"|partition|kernelagent|compute_grad_weight|krn_partial|partials|segment"
    r"|gammabeta|rowwisemoments|compactinit|adjacent_?difference|digitcounts|kthcounts|withinkcounts|reflection_pad"
    r"|replication_pad|elemwise|gru_cell|lstm_cell|glu_backward|[cp]dist_|adaptive_?average|fusedparams|internalgradients"
    r"|^apply_kernel|^static_kernel|^transform_(vals|kernel)|kernel_agent|coalescevalues|cross_kernel|compute_mode|randperm"
    r"|tri[lu]_indices|update_scale|flag_kernel|assert_async|checkfornan"
)

_ATEN_PRODUCTS = re.compile(
    r"^_?(mm|addmm|bmm|baddbmm|addbmm|matmul|\w*linear\w*|mv|addmv|dot|vdot|einsum|tensordot|inner|conv\w*|\w*convolution\w*"
    r"|mkldnn_\w*|mkl_\w*|thnn_conv\w*|slow_conv\w*|\w*scaled_dot_product\w*|\w*attention\w*|addmm_activation|addr|ger)$"
)
_ATEN_LAYOUT = re.compile(
    r"^_?(copy_?|clone|contiguous|to|to_copy|to_dense|to_mkldnn|transpose\w*|t|permute|view\w*|reshape\w*|reshape_alias|unsafe_view"
    r"|as_strided\w*|expand\w*|unsqueeze\w*|squeeze\w*|cat|stack|slice\w*|select|narrow|split\w*|chunk|unbind|flatten"
    r"|movedim|numpy_t|empty\w*|resize\w*|detach\w*|alias|set_|lift_fresh|im2col|col2im|pad|constant_pad_nd|roll|flip"
    r"|unfold\w*|index_put_impl_copy|pin_memory|item|local_scalar_dense|result_type|is_\w+|unflatten|view_as\w*)$"
)
_HOST_NAMESPACES = ("aten", "mkldnn", "inductor", "prims", "quantized", "torchvision")

_TRITON_WORDS_OF_LAYOUT = frozenset(
    {"clone", "copy", "to", "transpose", "permute", "view", "unsafe", "cat", "t", "stack", "slice", "contiguous"}
    | {"expand", "unsqueeze", "squeeze", "constant", "pad", "nd", "as", "strided", "select", "split", "im2col"}
)

_TENSOR_CORES = re.compile(
    r"tensorop|s16816|s1688|s884|i16816|h884|h1688|h16816|bf16_s|_hmma|hmma|imma|wgmma|gmma|nvjet|tensor16x8x|sm90_xmma"
    r"|sm80_xmma_\w*(tf32|f16|bf16)|tensor\d+x\d+x\d+|d884|z884|flash_(fwd|bwd)|xmma_\w*_(tf32|bf16|f16)|utcmma|tcgen05"
    r"|fmha_cutlass[fb]_(\w+_sm[89]\d|b?f16_\w+_sm7\d)|sdpa_sm80|m16n8k16"
)
_NO_TENSOR_CORES = re.compile(
    r"simt|sgemm|dgemm|gemv|scudnn|implicit_convolve_sgemm|explicit_convolve_sgemm|_ffma|grouped_direct|fft2d"
    r"|conv_depthwise|winograd"
)


@lru_cache(maxsize=100_000)
def class_of(name: str, content: KernelClass | None = None) -> KernelClass:
    """
    Args:
        content: what the compiled program says, where it knows; it counts before the name.
    """
    if content is not None:
        return content
    namespace, _, operator = name.rpartition("::")
    if namespace in _HOST_NAMESPACES:
        return _of_operator(operator)
    base = base_of(name).lower()
    if base.startswith(("triton_poi_", "triton_red_", "triton_per_", "triton_for_")):
        return _of_fusion(base, 3, _TRITON_WORDS_OF_LAYOUT)
    if base.startswith("cpp_fused_"):
        # Of a convolution, which is a call of a library as its bias is, such a kernel only changes the layout.
        return _of_fusion(base, 2, _TRITON_WORDS_OF_LAYOUT | {"convolution", "backward"})
    if _ELEMENTWISE.search(base):
        return "layout" if _COPY_FUNCTOR.search(name) else "traffic"
    if base in _GENERIC:
        base = name.lower()
    for kind, pattern in _BY_NAME:
        if pattern.search(base):
            return kind
    return "other"


_BY_NAME: tuple[tuple[KernelClass, re.Pattern[str]], ...] = (
    ("communication", _COMMUNICATION),
    ("layout", _LAYOUT),
    ("traffic", _AROUND_ATTENTION),
    ("product", _PRODUCT),
    ("traffic", _TRAFFIC),
)
"""In this order: `cudnn::nchwToNhwcKernel` and `splitKreduce_kernel` belong to the first that knows them."""


def uses_tensor_cores(name: str) -> bool | None:
    """Of a product; None where its name does not tell, as those of Triton and of a compiler's fusions. The patterns are
    those of xprof (xprof/utils/kernel_stats_utils.cc) and of newer kernels."""
    lower = name.lower()
    if _TENSOR_CORES.search(lower):
        return True
    return False if _NO_TENSOR_CORES.search(lower) else None


def base_of(name: str) -> str:
    """The function's own name: without return type, namespaces, template arguments and parameters; of a mangled name
    too."""
    if name.startswith("_Z"):
        return _unmangled(name)
    if name.startswith(("Memcpy", "Memset")):
        return name
    depth, plain = 0, []
    text = name.replace("(anonymous namespace)", "").replace("operator()", "")
    for character in text:
        if character in "<(":
            if character == "(" and depth == 0:
                break
            depth += 1
        elif character in ">)":
            depth = max(0, depth - 1)
        elif depth == 0:
            plain.append(character)
    last = "".join(plain).strip().rpartition("::")[2].strip()
    return last.rpartition(" ")[2] if " " in last else last


def _unmangled(name: str) -> str:
    """The last identifier of the function's name (Itanium C++ ABI, 5.1.2): `_ZN2at6native3fooILi4EEEv` is `foo`."""
    place = 3 if name.startswith("_ZN") else 2
    found = ""
    while match := re.compile(r"(\d+)").match(name, place):
        length, start = int(match[1]), match.end()
        found, place = name[start : start + length], start + length
        if not name.startswith("_ZN"):
            break
    return found or name


def _of_operator(operator: str) -> KernelClass:
    """Of PyTorch's own operators on the host: each is a product, moves data as they are, or computes."""
    if _ATEN_PRODUCTS.match(operator):
        return "product"
    return "layout" if _ATEN_LAYOUT.match(operator) else "traffic"


def _of_fusion(base: str, before: int, of_layout: frozenset[str]) -> KernelClass:
    """Inductor names a kernel after the operators that it has fused, behind so many words `before` them; of a kernel of
    Triton a convolution among them is its bias."""
    words = set(filter(None, re.sub(r"_\d+$", "", base).split("_")[before:]))
    return "layout" if words and words <= of_layout else "traffic"
