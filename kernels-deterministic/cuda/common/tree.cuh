/*
 * tree.cuh - leaves of tree hashes, for kernels that read or write a tensor anyway.
 *
 * hash.tree reads a tensor only to hash it. An op that has the bytes at hand can hash the leaves of
 * 16 KiB itself, one warp per leaf: by invar_tree_bytes, or full leaves by invar_xxh_long with a
 * source of its own, or by an invar_xxh_stream. invar_cuda_tree_rest then computes the rest of the
 * trees. The bits must be those of hash.tree (hash_tree.cu).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_CUDA_COMMON_TREE_CUH
#define INVAR_KERNELS_CUDA_COMMON_TREE_CUH

#include "kernels-deterministic/cuda/common/cuda.h"
#include "kernels-deterministic/cuda/common/xxh3.cuh"

static_assert(INVAR_TREE_LEAF_BYTES == INVAR_XXH_MAX, "a warp hashes a leaf");

/* Returns 16 bytes, of which byte i is read from address(i). */
template <typename F> __device__ __forceinline__ uint4 invar_gather_bytes(F address)
{
    uint32_t word[4] = {0, 0, 0, 0};

#pragma unroll
    for (int i = 0; i < 16; i++)
        word[i / 4] |= (uint32_t)*address(i) << 8 * (i % 4);
    return make_uint4(word[0], word[1], word[2], word[3]);
}

/* Source of contiguous bytes; pieces of 16 bytes are aligned. */
struct invar_linear_bytes {
    const uint8_t *at;

    __device__ __forceinline__ uint4 operator()(uint32_t offset) const
    {
        return *(const uint4 *)(at + offset);
    }

    /* Returns 16 bytes from any offset on. */
    __device__ __forceinline__ uint4 anywhere(uint32_t offset) const
    {
        return invar_gather_bytes([&](int i) { return at + offset + i; });
    }
};

/* Source of contiguous bytes from any address on. */
struct invar_any_bytes : invar_linear_bytes {
    __device__ __forceinline__ uint4 operator()(uint32_t offset) const
    {
        return anywhere(offset);
    }
};

/* Returns the hash of a leaf of more than 240 bytes, computed by one warp. */
template <typename Source>
__device__ __forceinline__ invar_xxh_hash invar_tree_long(const invar_xxh_lane &lane,
                                                          const Source &source, uint32_t bytes)
{
    uint32_t last = bytes - INVAR_XXH_STRIPE + 16 * (uint32_t)lane.q;

    if (bytes == INVAR_TREE_LEAF_BYTES)
        return invar_xxh_long<true>(lane, source, bytes, source(last));
    return invar_xxh_long<false>(lane, source, bytes, source.anywhere(last));
}

/* Like invar_tree_long, with fewer instructions. */
template <typename Source>
__device__ __forceinline__ invar_xxh_hash invar_tree_looped(const invar_xxh_lane &lane,
                                                            const Source &source, uint32_t bytes)
{
    uint32_t last = bytes - INVAR_XXH_STRIPE + 16 * (uint32_t)lane.q;

    return invar_xxh_looped(lane, source, bytes,
                            bytes % 16 == 0 ? source(last) : source.anywhere(last));
}

/*
 * Returns the hash of a leaf of up to 240 bytes; byte(i) returns its byte i. `buffer` has
 * INVAR_XXH_SHORT bytes and belongs to the warp.
 */
template <typename F>
__device__ __forceinline__ invar_xxh_hash invar_tree_short(uint32_t bytes, uint8_t *buffer, F byte)
{
    for (uint32_t i = threadIdx.x % 32; i < bytes; i += 32)
        buffer[i] = byte(i);
    __syncwarp();
    return invar_xxh_short(buffer, bytes);
}

/*
 * Returns the hash of a leaf of contiguous bytes, computed by one warp. `data` is aligned to 16
 * bytes, unless Source is invar_any_bytes.
 */
template <typename Source = invar_linear_bytes>
__device__ __forceinline__ invar_xxh_hash invar_tree_bytes(const invar_xxh_lane &lane,
                                                           const uint8_t *data, uint32_t bytes,
                                                           uint8_t *buffer)
{
    if (bytes <= INVAR_XXH_SHORT)
        return invar_tree_short(bytes, buffer, [&](uint32_t i) { return data[i]; });
    return invar_tree_long(lane, Source{data}, bytes);
}

/* Stores a hash in canonical form: big-endian, the high half first. */
__device__ __forceinline__ void invar_tree_store(invar_digest *out, invar_xxh_hash hash)
{
    *(ulonglong2 *)out = make_ulonglong2(invar_xxh_swap(hash.high), invar_xxh_swap(hash.low));
}

/* Returns the bytes of workspace that hash.tree needs for a tensor of one shard. */
size_t invar_tree_workspace_bytes(int64_t leaves);

/*
 * Computes hash.tree except for the leaves of tensors that have several, on behalf of `op`. The
 * caller has written the digests of those leaves to the start of the workspace
 * (invar_cuda_hash_tree_workspace), tensor after tensor, leaving memory for one digest of each
 * tensor that has a single leaf. Tensors have one shard, and none of them is quantized or empty.
 */
invar_status invar_cuda_tree_rest(const invar_device *dev, invar_op op,
                                  const invar_hash_tree_args *a, void *workspace) INVAR_MUST_USE;

#endif
