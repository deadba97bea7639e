/*
 * cutlass.cu - products by CUTLASS's stock kernels, as peers for bench.peers --peer.
 *
 * The kernels are those that CUTLASS's collective builder makes for Hopper by default, in two
 * common forms: cooperative warpgroups on tiles of 128 x 256, and "pingpong" warpgroups on tiles
 * of 128 x 128. Products in fp8 have the engine's scale blocks, 1 x 128 and 128 x 128, but CUTLASS
 * reads the scales of x with contiguous rows, which the engine's are not. It reads the same number
 * of bytes in another order, so the results are wrong: only the speed is compared.
 * tests/bench/cutlass.sh compiles this file. A failure ends the program.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <cstdio>
#include <cstdlib>
#include <type_traits>

#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/device/gemm_universal_adapter.h>
#include <cutlass/gemm/kernel/gemm_universal.hpp>

#include "kernels-deterministic/cuda/common/cuda.h"
#include "kernels-deterministic/ops.h"
#include "tests/bench/peers.h"

namespace
{

using rows = cutlass::layout::RowMajor;
using columns = cutlass::layout::ColumnMajor;
using cute::Int;
using cute::Shape;
using bf16 = cutlass::bfloat16_t;
using e4m3 = cutlass::float_e4m3_t;

/* The engine's scale blocks: 1 x 128 for x, 128 x 128 for w. */
using scales = cutlass::detail::Sm90BlockwiseScaleConfig<1, 128, 128, cute::GMMA::Major::MN,
                                                         cute::GMMA::Major::K>;

struct cooperative {
    using loop = cutlass::gemm::KernelTmaWarpSpecializedCooperative;
    using end = cutlass::epilogue::TmaWarpSpecializedCooperative;
    using tile = Shape<Int<128>, Int<256>, Int<64>>;
};

struct pingpong {
    using loop = cutlass::gemm::KernelTmaWarpSpecializedPingpong;
    using end = cutlass::epilogue::TmaWarpSpecialized;
    using tile = Shape<Int<128>, Int<128>, Int<64>>;
};

struct blockwise {
    using loop = cutlass::gemm::KernelTmaWarpSpecializedCooperativeFP8Blockwise;
    using end = cutlass::epilogue::TmaWarpSpecializedCooperative;
    using tile = Shape<Int<128>, Int<128>, Int<128>>;
};

/*
 * d (m, n) = a (m, k) b (k, n), or that plus d. A and B are the layouts of the operands, D the type
 * of d.
 */
template <class FORM, class T, class A, class B, class D> struct kernel {
    static constexpr bool fp8 = std::is_same_v<T, e4m3>;
    using cluster_shape = Shape<Int<2>, Int<1>, Int<1>>; // thread blocks of a cluster
    using a_layout =
        std::conditional_t<fp8, cute::tuple<A, decltype(scales::deduce_layoutSFA())>, A>;
    using b_layout =
        std::conditional_t<fp8, cute::tuple<B, decltype(scales::deduce_layoutSFB())>, B>;
    static constexpr int align = 16 / sizeof(T), align_d = 16 / sizeof(D);

    using end = typename cutlass::epilogue::collective::CollectiveBuilder<
        cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, typename FORM::tile, cluster_shape,
        cutlass::epilogue::collective::EpilogueTileAuto, float, float, D, rows, align_d, D, rows,
        align_d, typename FORM::end>::CollectiveOp;
    using loop = typename cutlass::gemm::collective::CollectiveBuilder<
        cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, T, a_layout, align, T, b_layout, align,
        float, typename FORM::tile, cluster_shape,
        cutlass::gemm::collective::StageCountAutoCarveout<(int)sizeof(typename end::SharedStorage)>,
        typename FORM::loop>::CollectiveOp;
    using gemm = cutlass::gemm::device::GemmUniversalAdapter<
        cutlass::gemm::kernel::GemmUniversal<Shape<int, int, int, int>, loop, end>>;
};

[[noreturn]] void die(const char *what, int code)
{
    std::fprintf(stderr, "invar: bench: the peer's %s failed (%d)\n", what, code);
    std::abort();
}

/*
 * Returns the distance of two rows, or columns, in elements; the other stride is 1 by the layout.
 */
template <class STRIDE> STRIDE stride_of(const invar_tensor &t)
{
    STRIDE made{};

    if constexpr (cute::is_static<cute::tuple_element_t<1, STRIDE>>::value)
        cute::get<0>(made) = t.row_stride;
    else
        cute::get<1>(made) = t.row_stride;
    return made;
}

template <class KERNEL>
void multiply(const invar_device *dev, const invar_tensor &d, const invar_tensor &a,
              const invar_tensor &b, int64_t k, bool add)
{
    using gemm = typename KERNEL::gemm;
    using element = typename gemm::ElementA;
    using output = typename gemm::ElementD;
    static const auto hardware =
        cutlass::KernelHardwareInfo::make_kernel_hardware_info<typename gemm::GemmKernel>(
            invar_cuda_of(dev)->ordinal);
    auto size = cute::make_shape((int)d.shape[0], (int)d.shape[1], (int)k, 1);
    auto stride_d = stride_of<typename gemm::GemmKernel::StrideD>(d);
    typename gemm::Arguments args{};
    gemm run;

    args.mode = cutlass::gemm::GemmUniversalMode::kGemm;
    args.problem_shape = size;
    args.mainloop.ptr_A = (const element *)a.data;
    args.mainloop.dA = stride_of<typename gemm::GemmKernel::StrideA>(a);
    args.mainloop.ptr_B = (const element *)b.data;
    args.mainloop.dB = stride_of<typename gemm::GemmKernel::StrideB>(b);
    if constexpr (KERNEL::fp8) {
        args.mainloop.ptr_SFA = (const float *)a.scale;
        args.mainloop.layout_SFA = scales::tile_atom_to_shape_SFA(size);
        args.mainloop.ptr_SFB = (const float *)b.scale;
        args.mainloop.layout_SFB = scales::tile_atom_to_shape_SFB(size);
    }
    args.epilogue = {{1.0f, add ? 1.0f : 0.0f},
                     add ? (const output *)d.data : nullptr,
                     stride_d,
                     (output *)d.data,
                     stride_d};
    args.hw_info = hardware;
    if (gemm::get_workspace_size(args) > 0)
        die("workspace", 0);
    if (auto code = gemm::can_implement(args); code != cutlass::Status::kSuccess)
        die("can_implement", (int)code);
    if (auto code = run.run(args, nullptr, invar_cuda_of(dev)->stream);
        code != cutlass::Status::kSuccess)
        die("run", (int)code);
}

template <class FORM, class T>
invar_status linear_fwd(const invar_device *dev, const void *args, void *)
{
    const auto &a = *(const invar_linear_fwd_args *)args;

    multiply<kernel<FORM, T, rows, columns, bf16>>(dev, a.y, a.x, a.w, a.x.shape[1], false);
    return INVAR_OK;
}

template <class FORM> invar_status linear_dx(const invar_device *dev, const void *args, void *)
{
    const auto &a = *(const invar_linear_dx_args *)args;

    for (int32_t i = 0; i < a.n_parts; i++)
        multiply<kernel<FORM, bf16, rows, rows, bf16>>(dev, a.dx, a.parts[i].dy, a.parts[i].w,
                                                       a.parts[i].dy.shape[1], i > 0);
    return INVAR_OK;
}

template <class FORM> invar_status linear_dw(const invar_device *dev, const void *args, void *)
{
    const auto &a = *(const invar_linear_dw_args *)args;

    multiply<kernel<FORM, bf16, columns, rows, float>>(dev, a.dw, a.dy, a.x, a.x.shape[0],
                                                       !a.fresh);
    return INVAR_OK;
}

} // namespace

extern "C" __attribute__((visibility("default"))) const invar_gpu_compare_peer *
invar_race_peers(const invar_backend *backend)
{
    static const invar_gpu_compare_peer list[] = {
        {"CUTLASS, cooperative", INVAR_OP_LINEAR_FWD, "bf16", linear_fwd<cooperative, bf16>},
        {"CUTLASS, pingpong", INVAR_OP_LINEAR_FWD, "bf16", linear_fwd<pingpong, bf16>},
        {"CUTLASS, cooperative", INVAR_OP_LINEAR_DX, "bf16", linear_dx<cooperative>},
        {"CUTLASS, pingpong", INVAR_OP_LINEAR_DX, "bf16", linear_dx<pingpong>},
        {"CUTLASS, cooperative", INVAR_OP_LINEAR_DW, "bf16", linear_dw<cooperative>},
        {"CUTLASS, pingpong", INVAR_OP_LINEAR_DW, "bf16", linear_dw<pingpong>},
        {"CUTLASS, the same blocks", INVAR_OP_LINEAR_FWD, "fp8", linear_fwd<blockwise, e4m3>},
        {},
    };

    return backend->memory.device_local ? list : nullptr;
}
