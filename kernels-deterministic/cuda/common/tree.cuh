/*
 * tree.cuh - the leaves of tree hashes, for kernels that read a tensor anyway.
 *
 * hash.tree reads a tensor for its hash alone. An op that reads or writes it anyway can hash its
 * leaves on the way, a warp each: by invar_tree_bytes, or whole ones by invar_xxh_long with its own
 * source, or by an invar_xxh_stream. invar_cuda_tree_rest then does what is left. The bits are
 * those of hash.tree (hash_tree.cu).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_CUDA_COMMON_TREE_CUH
#define INVAR_KERNELS_CUDA_COMMON_TREE_CUH

#include "kernels-deterministic/cuda/common/cuda.h"
#include "kernels-deterministic/cuda/common/xxh3.cuh"

static_assert(INVAR_TREE_LEAF_BYTES == INVAR_XXH_MAX, "a warp hashes a leaf");

/* 16 bytes, of which byte i lies at address(i). */
template <typename F> __device__ __forceinline__ uint4 invar_gather_bytes(F address)
{
    uint32_t word[4] = {0, 0, 0, 0};

#pragma unroll
    for (int i = 0; i < 16; i++)
        word[i / 4] |= (uint32_t)*address(i) << 8 * (i % 4);
    return make_uint4(word[0], word[1], word[2], word[3]);
}

/* Without gaps; pieces of 16 bytes are aligned. */
struct invar_linear_bytes {
    const uint8_t *at;

    __device__ __forceinline__ uint4 operator()(uint32_t offset) const
    {
        return *(const uint4 *)(at + offset);
    }

    /* From any offset on. */
    __device__ __forceinline__ uint4 anywhere(uint32_t offset) const
    {
        return invar_gather_bytes([&](int i) { return at + offset + i; });
    }
};

/* Without gaps, from any address on. */
struct invar_any_bytes : invar_linear_bytes {
    __device__ __forceinline__ uint4 operator()(uint32_t offset) const
    {
        return anywhere(offset);
    }
};

/* More than 240 bytes. */
template <typename Source>
__device__ __forceinline__ invar_xxh_hash invar_tree_long(const invar_xxh_lane &lane,
                                                          const Source &source, uint32_t bytes)
{
    uint32_t last = bytes - INVAR_XXH_STRIPE + 16 * (uint32_t)lane.q;

    if (bytes == INVAR_TREE_LEAF_BYTES)
        return invar_xxh_long<true>(lane, source, bytes, source(last));
    return invar_xxh_long<false>(lane, source, bytes, source.anywhere(last));
}

/* The same with little code. */
template <typename Source>
__device__ __forceinline__ invar_xxh_hash invar_tree_looped(const invar_xxh_lane &lane,
                                                            const Source &source, uint32_t bytes)
{
    uint32_t last = bytes - INVAR_XXH_STRIPE + 16 * (uint32_t)lane.q;

    return invar_xxh_looped(lane, source, bytes,
                            bytes % 16 == 0 ? source(last) : source.anywhere(last));
}

/* Up to 240, of which number i is byte(i). `buffer` is the warp's own, of INVAR_XXH_SHORT. */
template <typename F>
__device__ __forceinline__ invar_xxh_hash invar_tree_short(uint32_t bytes, uint8_t *buffer, F byte)
{
    for (uint32_t i = threadIdx.x % 32; i < bytes; i += 32)
        buffer[i] = byte(i);
    __syncwarp();
    return invar_xxh_short(buffer, bytes);
}

/* One warp: the hash of a leaf whose bytes lie together, from an address of 16 on or from any. */
template <typename Source = invar_linear_bytes>
__device__ __forceinline__ invar_xxh_hash invar_tree_bytes(const invar_xxh_lane &lane,
                                                           const uint8_t *data, uint32_t bytes,
                                                           uint8_t *buffer)
{
    if (bytes <= INVAR_XXH_SHORT)
        return invar_tree_short(bytes, buffer, [&](uint32_t i) { return data[i]; });
    return invar_tree_long(lane, Source{data}, bytes);
}

/* Canonical: big-endian, the high half first. */
__device__ __forceinline__ void invar_tree_store(invar_digest *out, invar_xxh_hash hash)
{
    *(ulonglong2 *)out = make_ulonglong2(invar_xxh_swap(hash.high), invar_xxh_swap(hash.low));
}

/* What hash.tree needs of its workspace for a tensor of one shard. */
size_t invar_tree_room(int64_t leaves);

/*
 * Everything of hash.tree but the leaves of tensors that have several, on behalf of `op`: their
 * digests are at the begin of the workspace (invar_cuda_hash_tree_workspace), one tensor's behind
 * the other's, with room for one of each tensor that has a single leaf. One shard; no tensor is
 * quantized or empty.
 */
invar_status invar_cuda_tree_rest(const invar_device *dev, invar_op op,
                                  const invar_hash_tree_args *a, void *workspace) INVAR_MUST_USE;

#endif
