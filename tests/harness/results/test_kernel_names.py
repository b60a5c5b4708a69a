"""What kernels do, by the names that profilers give them."""

from pathlib import Path

import pytest

from harness.results.kernel_names import class_of, uses_tensor_cores

FILE = Path(__file__).with_name("kernel_names.tsv")
"""Class and name, of cuBLAS, cuDNN, CUTLASS, Triton, XLA, NCCL, PyTorch and its operators on a CPU."""
CASES = [tuple(line.split("\t")) for line in FILE.read_text().splitlines()]


def test_class_of_a_name() -> None:
    wrong = [(kind, class_of(name), name) for kind, name in CASES if class_of(name) != kind]
    assert len(CASES) >= 230 and wrong == []
    assert class_of("fusion_15", "product") == "product", "the program knows better than the name"


@pytest.mark.parametrize(
    ("name", "uses"),
    [
        ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn", True),
        ("nvjet_tst_256x128_64x4_1x2_h_bz_coopA_NNT", True),
        ("sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x16_g1_tensor16x8x8", True),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x64_4x1x1_kernel0_0", True),
        ("fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::Params)", True),
        ("fmha_cutlassB_f16_aligned_64x64_k64_sm75(PyTorchMemEffAttention::Params)", True),
        ("fmha_cutlassF_f32_aligned_64x64_rf_sm70(PyTorchMemEffAttention::Params)", None),
        ("cudnn_generated_fort_native_sdpa_sm80_flash_fprop_f16_knob_3_64x64x64_4x1x1_kernel0_0", True),
        ("void at::native::tinygemm_m16n8k16_chunk_kernel<float>(float*)", True),
        ("ampere_sgemm_128x64_tn", False),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_64x64_8x5_tn_align1>(Params)", False),
        ("void implicit_convolve_sgemm<float, float, 1024, 5, 5, 3, 3, 3, 1>(int)", False),
        ("triton_tem_fused_mm_3", None),
        ("gemm_fusion_dot_1", None),
    ],
)
def test_whether_a_product_uses_tensor_cores(name: str, uses: bool | None) -> None:
    assert uses_tensor_cores(name) is uses
