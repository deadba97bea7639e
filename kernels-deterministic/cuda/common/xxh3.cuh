/*
 * xxh3.cuh - XXH3-128 with seed 0 and the default secret, on the GPU.
 *
 * The bits are those of XXH3_128bits (xxHash 0.8). One thread hashes inputs of up to 240 bytes.
 * Longer inputs are 64-byte stripes, 16 of which form a block. What the stripes of a block add to
 * the eight accumulators does not depend on the accumulators, so blocks are summed independently,
 * and only the scrambling between them is sequential.
 *
 * A warp hashes up to 16 KiB, which it reads in order: thread 4r + q reads 16 bytes of the stripes
 * r and r + 8 of every block, and the sums are then exchanged so that it has the accumulators 2q
 * and 2q + 1 of the blocks r and r + 8.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_CUDA_COMMON_XXH3_CUH
#define INVAR_KERNELS_CUDA_COMMON_XXH3_CUH

#include <stdint.h>

#define INVAR_XXH_PRIME32_1 UINT32_C(0x9E3779B1)
#define INVAR_XXH_PRIME32_2 UINT32_C(0x85EBCA77)
#define INVAR_XXH_PRIME32_3 UINT32_C(0xC2B2AE3D)
#define INVAR_XXH_PRIME64_1 UINT64_C(0x9E3779B185EBCA87)
#define INVAR_XXH_PRIME64_2 UINT64_C(0xC2B2AE3D27D4EB4F)
#define INVAR_XXH_PRIME64_3 UINT64_C(0x165667B19E3779F9)
#define INVAR_XXH_PRIME64_4 UINT64_C(0x85EBCA77C2B2AE63)
#define INVAR_XXH_PRIME64_5 UINT64_C(0x27D4EB2F165667C5)

#define INVAR_XXH_STRIPE 64
#define INVAR_XXH_STRIPES 16 /* stripes of a block */
#define INVAR_XXH_BLOCK (INVAR_XXH_STRIPE * INVAR_XXH_STRIPES)
#define INVAR_XXH_SHORT 240 /* largest size of a short input, in bytes */
#define INVAR_XXH_MAX (16 * INVAR_XXH_BLOCK)

/* The default secret, 192 bytes, as little-endian words. */
static __constant__ uint64_t invar_xxh_secret[24] = {
    UINT64_C(0xBE4BA423396CFEB8), UINT64_C(0x1CAD21F72C81017C), UINT64_C(0xDB979083E96DD4DE),
    UINT64_C(0x1F67B3B7A4A44072), UINT64_C(0x78E5C0CC4EE679CB), UINT64_C(0x2172FFCC7DD05A82),
    UINT64_C(0x8E2443F7744608B8), UINT64_C(0x4C263A81E69035E0), UINT64_C(0xCB00C391BB52283C),
    UINT64_C(0xA32E531B8B65D088), UINT64_C(0x4EF90DA297486471), UINT64_C(0xD8ACDEA946EF1938),
    UINT64_C(0x3F349CE33F76FAA8), UINT64_C(0x1D4F0BC7C7BBDCF9), UINT64_C(0x3159B4CD4BE0518A),
    UINT64_C(0x647378D9C97E9FC8), UINT64_C(0xC3EBD33483ACC5EA), UINT64_C(0xEB6313FAFFA081C5),
    UINT64_C(0x49DAF0B751DD0D17), UINT64_C(0x9E68D429265516D3), UINT64_C(0xFCA1477D58BE162B),
    UINT64_C(0xCE31D07AD1B8F88F), UINT64_C(0x280416958F3ACB45), UINT64_C(0x7E404BBBCAFBD7AF)};

struct invar_xxh_hash {
    uint64_t low, high;
};

/* ---- words ----------------------------------------------------------------------------------- */

/* Returns eight bytes of the secret, from byte `at` on. */
__device__ __forceinline__ uint64_t invar_xxh_key(int at)
{
    int word = at / 8, shift = at % 8 * 8;
    uint64_t low = invar_xxh_secret[word] >> shift;

    return shift == 0 ? low : low | invar_xxh_secret[word + 1] << (64 - shift);
}

__device__ __forceinline__ uint64_t invar_xxh_read(const uint8_t *p, int bytes)
{
    uint64_t x = 0;

    for (int i = 0; i < bytes; i++)
        x |= (uint64_t)p[i] << 8 * i;
    return x;
}

__device__ __forceinline__ uint64_t invar_xxh_swap(uint64_t x)
{
    uint32_t low = (uint32_t)x, high = (uint32_t)(x >> 32);

    return (uint64_t)__byte_perm(low, 0, 0x0123) << 32 | __byte_perm(high, 0, 0x0123);
}

__device__ __forceinline__ uint64_t invar_xxh_shift(uint64_t x, int bits)
{
    return x ^ x >> bits;
}

__device__ __forceinline__ uint64_t invar_xxh_avalanche(uint64_t x)
{
    return invar_xxh_shift(invar_xxh_shift(x, 37) * UINT64_C(0x165667919E3779F9), 32);
}

/* Final mixing of XXH64. */
__device__ __forceinline__ uint64_t invar_xxh_avalanche64(uint64_t x)
{
    x = invar_xxh_shift(x, 33) * INVAR_XXH_PRIME64_2;
    x = invar_xxh_shift(x, 29) * INVAR_XXH_PRIME64_3;
    return invar_xxh_shift(x, 32);
}

/* Returns both halves of the 128-bit product, combined by exclusive or. */
__device__ __forceinline__ uint64_t invar_xxh_fold(uint64_t a, uint64_t b)
{
    return a * b ^ __umul64hi(a, b);
}

/* ---- short inputs ---------------------------------------------------------------------------- */

__device__ __forceinline__ invar_xxh_hash invar_xxh_up_to_3(const uint8_t *p, uint32_t bytes)
{
    uint32_t low = (uint32_t)p[0] << 16 | (uint32_t)p[bytes >> 1] << 24 | p[bytes - 1] | bytes << 8;
    uint32_t swapped = __byte_perm(low, 0, 0x0123);
    uint32_t high = swapped << 13 | swapped >> 19;
    uint64_t key0 = invar_xxh_key(0), key1 = invar_xxh_key(8);

    return {invar_xxh_avalanche64(low ^ ((uint32_t)key0 ^ (uint32_t)(key0 >> 32))),
            invar_xxh_avalanche64(high ^ ((uint32_t)key1 ^ (uint32_t)(key1 >> 32)))};
}

__device__ __forceinline__ invar_xxh_hash invar_xxh_up_to_8(const uint8_t *p, uint32_t bytes)
{
    uint64_t x = invar_xxh_read(p, 4) | invar_xxh_read(p + bytes - 4, 4) << 32;
    uint64_t keyed = x ^ invar_xxh_key(16) ^ invar_xxh_key(24);
    uint64_t factor = INVAR_XXH_PRIME64_1 + (bytes << 2);
    uint64_t low = keyed * factor, high = __umul64hi(keyed, factor);

    high += low << 1;
    low ^= high >> 3;
    low = invar_xxh_shift(low, 35) * UINT64_C(0x9FB21C651E98DF25);
    return {invar_xxh_shift(low, 28), invar_xxh_avalanche(high)};
}

__device__ __forceinline__ invar_xxh_hash invar_xxh_up_to_16(const uint8_t *p, uint32_t bytes)
{
    uint64_t x = invar_xxh_read(p, 8), y = invar_xxh_read(p + bytes - 8, 8);
    uint64_t keyed = x ^ y ^ invar_xxh_key(32) ^ invar_xxh_key(40);
    uint64_t low = keyed * INVAR_XXH_PRIME64_1, high = __umul64hi(keyed, INVAR_XXH_PRIME64_1);

    low += (uint64_t)(bytes - 1) << 54;
    y ^= invar_xxh_key(48) ^ invar_xxh_key(56);
    high += y + (uint64_t)(uint32_t)y * (INVAR_XXH_PRIME32_2 - 1);
    low ^= invar_xxh_swap(high);
    return {invar_xxh_avalanche(low * INVAR_XXH_PRIME64_2),
            invar_xxh_avalanche(__umul64hi(low, INVAR_XXH_PRIME64_2) + high * INVAR_XXH_PRIME64_2)};
}

/* Adds 16 bytes at p and 16 at q to the accumulators; `key` is an offset in the secret. */
__device__ __forceinline__ void invar_xxh_mix(invar_xxh_hash *acc, const uint8_t *p,
                                              const uint8_t *q, int key)
{
    uint64_t p0 = invar_xxh_read(p, 8), p1 = invar_xxh_read(p + 8, 8);
    uint64_t q0 = invar_xxh_read(q, 8), q1 = invar_xxh_read(q + 8, 8);

    acc->low += invar_xxh_fold(p0 ^ invar_xxh_key(key), p1 ^ invar_xxh_key(key + 8));
    acc->low ^= q0 + q1;
    acc->high += invar_xxh_fold(q0 ^ invar_xxh_key(key + 16), q1 ^ invar_xxh_key(key + 24));
    acc->high ^= p0 + p1;
}

/* Returns the hash of 17 to 240 bytes. */
__device__ __forceinline__ invar_xxh_hash invar_xxh_middle(const uint8_t *p, uint32_t bytes)
{
    invar_xxh_hash acc = {bytes * INVAR_XXH_PRIME64_1, 0};

    if (bytes <= 128) {
        for (int i = (int)(bytes - 1) / 32; i >= 0; i--)
            invar_xxh_mix(&acc, p + 16 * i, p + bytes - 16 * (i + 1), 32 * i);
    } else {
        for (int i = 0; i < (int)bytes / 32; i++) {
            if (i == 4)
                acc = {invar_xxh_avalanche(acc.low), invar_xxh_avalanche(acc.high)};
            invar_xxh_mix(&acc, p + 32 * i, p + 32 * i + 16, i < 4 ? 32 * i : 32 * (i - 4) + 3);
        }
        if (bytes / 32 == 4)
            acc = {invar_xxh_avalanche(acc.low), invar_xxh_avalanche(acc.high)};
        invar_xxh_mix(&acc, p + bytes - 16, p + bytes - 32, 136 - 17 - 16);
    }
    return {invar_xxh_avalanche(acc.low + acc.high),
            0 - invar_xxh_avalanche(acc.low * INVAR_XXH_PRIME64_1 + acc.high * INVAR_XXH_PRIME64_4 +
                                    bytes * INVAR_XXH_PRIME64_2)};
}

/* Returns the hash of up to 240 bytes, computed by one thread. */
static __device__ __noinline__ invar_xxh_hash invar_xxh_short(const uint8_t *p, uint32_t bytes)
{
    if (bytes > 16)
        return invar_xxh_middle(p, bytes);
    if (bytes > 8)
        return invar_xxh_up_to_16(p, bytes);
    if (bytes >= 4)
        return invar_xxh_up_to_8(p, bytes);
    if (bytes > 0)
        return invar_xxh_up_to_3(p, bytes);
    return {invar_xxh_avalanche64(invar_xxh_key(64) ^ invar_xxh_key(72)),
            invar_xxh_avalanche64(invar_xxh_key(80) ^ invar_xxh_key(88))};
}

/* ---- long inputs, by a warp ------------------------------------------------------------------ */

/* Two neighboring accumulators, the even one first. */
struct invar_xxh_pair {
    uint64_t even, odd;

    /* Adds 16 bytes of a stripe; the keys are the words of the secret for them. */
    __device__ __forceinline__ void take(uint4 data, uint64_t key_even, uint64_t key_odd)
    {
        uint64_t x = (uint64_t)data.y << 32 | data.x, y = (uint64_t)data.w << 32 | data.z;
        uint64_t keyed_x = x ^ key_even, keyed_y = y ^ key_odd;

        even += y + (uint64_t)(uint32_t)keyed_x * (uint32_t)(keyed_x >> 32);
        odd += x + (uint64_t)(uint32_t)keyed_y * (uint32_t)(keyed_y >> 32);
    }

    __device__ __forceinline__ void scramble(uint64_t key_even, uint64_t key_odd)
    {
        even = (invar_xxh_shift(even, 47) ^ key_even) * INVAR_XXH_PRIME32_1;
        odd = (invar_xxh_shift(odd, 47) ^ key_odd) * INVAR_XXH_PRIME32_1;
    }
};

/*
 * Role of thread 4r + q: the accumulators 2q and 2q + 1, of the stripes r and r + 8 of every block.
 * The keys are the words of the secret for the stripes r and r + 8, and for the scrambling.
 */
struct invar_xxh_lane {
    int q, r;
    uint64_t key[2][2], scramble[2];

    __device__ __forceinline__ void start()
    {
        q = (int)threadIdx.x % 4;
        r = (int)threadIdx.x % 32 / 4;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            key[0][i] = invar_xxh_secret[r + i + 2 * q];
            key[1][i] = invar_xxh_secret[r + 8 + i + 2 * q];
            scramble[i] = invar_xxh_secret[INVAR_XXH_STRIPES + i + 2 * q];
        }
    }
};

/*
 * Exchanges sums between threads that are `distance` apart: half of the threads keep the first of
 * two pairs, the others the second, and each adds its partner's sum of the pair that it keeps.
 */
__device__ __forceinline__ invar_xxh_pair invar_xxh_trade(invar_xxh_pair first,
                                                          invar_xxh_pair second, int distance)
{
    bool upper = (threadIdx.x & (unsigned)distance) != 0;
    invar_xxh_pair keep = upper ? second : first, send = upper ? first : second;

    return {keep.even + __shfl_xor_sync(0xFFFFFFFFu, send.even, distance),
            keep.odd + __shfl_xor_sync(0xFFFFFFFFu, send.odd, distance)};
}

/*
 * Returns what the stripes of `Count` blocks, 4 or 8, from block `first` on add; `stripes` is the
 * number of stripes of the input, not counting the last one. Thread 4r + q gets the sum of block
 * first + r % Count. source(offset) returns 16 bytes; a warp reads 512 contiguous bytes. `Full`
 * means 16 KiB, of which only the last stripe of the last block is not added here.
 */
template <int Count, bool Full, typename Source>
__device__ __forceinline__ invar_xxh_pair invar_xxh_blocks(const invar_xxh_lane &lane,
                                                           const Source &source, int first,
                                                           int stripes)
{
    constexpr int batch = 4; // blocks whose loads are in flight at once
    uint32_t begin = (uint32_t)(first * INVAR_XXH_BLOCK + lane.r * INVAR_XXH_STRIPE + 16 * lane.q);
    // stripes from this thread's first one on
    int left = stripes - first * INVAR_XXH_STRIPES - lane.r;
    invar_xxh_pair sum[Count] = {};

#pragma unroll
    for (int base = 0; base < Count; base += batch) {
        uint4 data[batch][2];
#pragma unroll
        for (int i = 0; i < 2 * batch; i++) {
            int stripe = base * INVAR_XXH_STRIPES + 8 * i;
            data[i / 2][i % 2] =
                source(Full || stripe < left ? begin + (uint32_t)stripe * INVAR_XXH_STRIPE : 0);
        }
#pragma unroll
        for (int i = 0; i < 2 * batch; i++) {
            int stripe = base * INVAR_XXH_STRIPES + 8 * i;
            if ((Full && stripe < (2 * Count - 1) * 8) || stripe < left)
                sum[base + i / 2].take(data[i / 2][i % 2], lane.key[i % 2][0], lane.key[i % 2][1]);
        }
    }
#pragma unroll
    for (int half = Count / 2; half > 0; half /= 2)
#pragma unroll
        for (int b = 0; b < half; b++)
            sum[b] = invar_xxh_trade(sum[b], sum[b + half], 4 * half);
#pragma unroll
    for (int distance = 4 * Count; distance < 32; distance *= 2) {
        sum[0].even += __shfl_xor_sync(0xFFFFFFFFu, sum[0].even, distance);
        sum[0].odd += __shfl_xor_sync(0xFFFFFFFFu, sum[0].odd, distance);
    }
    return sum[0];
}

__device__ __forceinline__ uint64_t invar_xxh_sum4(uint64_t x)
{
    x += __shfl_xor_sync(0xFFFFFFFFu, x, 1);
    return x + __shfl_xor_sync(0xFFFFFFFFu, x, 2);
}

/* Returns the accumulators before the first block. */
__device__ __forceinline__ invar_xxh_pair invar_xxh_begin(const invar_xxh_lane &lane)
{
    switch (lane.q) {
    case 0: return {INVAR_XXH_PRIME32_3, INVAR_XXH_PRIME64_1};
    case 1: return {INVAR_XXH_PRIME64_2, INVAR_XXH_PRIME64_3};
    case 2: return {INVAR_XXH_PRIME64_4, INVAR_XXH_PRIME32_2};
    default: return {INVAR_XXH_PRIME64_5, INVAR_XXH_PRIME32_1};
    }
}

/* Returns the hash after the last block; `last` is this thread's part of the last 64 bytes. */
__device__ __forceinline__ invar_xxh_hash invar_xxh_end(const invar_xxh_lane &lane,
                                                        invar_xxh_pair acc, uint32_t bytes,
                                                        uint4 last)
{
    int q = lane.q;

    acc.take(last, invar_xxh_key(121 + 16 * q), invar_xxh_key(129 + 16 * q));
    uint64_t low = invar_xxh_sum4(invar_xxh_fold(acc.even ^ invar_xxh_key(11 + 16 * q),
                                                 acc.odd ^ invar_xxh_key(19 + 16 * q)));
    uint64_t high = invar_xxh_sum4(invar_xxh_fold(acc.even ^ invar_xxh_key(117 + 16 * q),
                                                  acc.odd ^ invar_xxh_key(125 + 16 * q)));
    return {invar_xxh_avalanche(bytes * INVAR_XXH_PRIME64_1 + low),
            invar_xxh_avalanche(~(bytes * INVAR_XXH_PRIME64_2) + high)};
}

/* Returns the hash of 241 bytes to 16 KiB. `last` is this thread's part of the last 64 bytes. */
template <bool Full, typename Source>
__device__ __forceinline__ invar_xxh_hash invar_xxh_long(const invar_xxh_lane &lane,
                                                         const Source &source, uint32_t bytes,
                                                         uint4 last)
{
    int blocks = Full ? 15 : (int)(bytes - 1) / INVAR_XXH_BLOCK; // number of blocks before the last
    int stripes = (int)(bytes - 1) / INVAR_XXH_STRIPE;
    invar_xxh_pair part[2], acc = invar_xxh_begin(lane);

    part[0] = invar_xxh_blocks<8, Full>(lane, source, 0, stripes);
    part[1] = invar_xxh_blocks<8, Full>(lane, source, 8, stripes);
#pragma unroll
    for (int b = 0; b < 16; b++) {
        if (b > blocks)
            continue;
        acc.even += __shfl_sync(0xFFFFFFFFu, part[b / 8].even, b % 8 * 4 + lane.q);
        acc.odd += __shfl_sync(0xFFFFFFFFu, part[b / 8].odd, b % 8 * 4 + lane.q);
        if (b < blocks)
            acc.scramble(lane.scramble[0], lane.scramble[1]);
    }
    return invar_xxh_end(lane, acc, bytes, last);
}

/*
 * Like invar_xxh_long, in loops with far fewer instructions: launches of few warps finish sooner,
 * and launches of many are not slower.
 */
template <typename Source>
__device__ __forceinline__ invar_xxh_hash invar_xxh_looped(const invar_xxh_lane &lane,
                                                           const Source &source, uint32_t bytes,
                                                           uint4 last)
{
    int blocks = (int)(bytes - 1) / INVAR_XXH_BLOCK; // number of blocks before the last
    int stripes = (int)(bytes - 1) / INVAR_XXH_STRIPE;
    invar_xxh_pair part = {}, acc = invar_xxh_begin(lane);

#pragma unroll 1
    for (int b = 0; b <= blocks; b++) {
        if (b % 4 == 0)
            part = invar_xxh_blocks<4, false>(lane, source, b, stripes);
        acc.even += __shfl_sync(0xFFFFFFFFu, part.even, b % 4 * 4 + lane.q);
        acc.odd += __shfl_sync(0xFFFFFFFFu, part.odd, b % 4 * 4 + lane.q);
        if (b < blocks)
            acc.scramble(lane.scramble[0], lane.scramble[1]);
    }
    return invar_xxh_end(lane, acc, bytes, last);
}

/*
 * Hash of 16 KiB that are added block by block: fewer registers and more exchanges than
 * invar_xxh_long, for a warp that computes the bytes. Thread 4r + q passes 16 bytes of the stripes
 * r and r + 8.
 */
struct invar_xxh_stream {
    invar_xxh_pair acc;
    uint4 last; /* this thread's part of stripe r + 8 of the latest block */

    __device__ __forceinline__ explicit invar_xxh_stream(const invar_xxh_lane &lane)
        : acc(invar_xxh_begin(lane)), last()
    {
    }

    /* Adds a block. `end` marks the last block, whose last stripe is added by end(). */
    __device__ __forceinline__ void take(const invar_xxh_lane &lane, uint4 first, uint4 second,
                                         bool end)
    {
        invar_xxh_pair sum = {};

        sum.take(first, lane.key[0][0], lane.key[0][1]);
        if (!end || lane.r < 7)
            sum.take(second, lane.key[1][0], lane.key[1][1]);
#pragma unroll
        for (int distance = 4; distance < 32; distance *= 2) {
            sum.even += __shfl_xor_sync(0xFFFFFFFFu, sum.even, distance);
            sum.odd += __shfl_xor_sync(0xFFFFFFFFu, sum.odd, distance);
        }
        acc.even += sum.even;
        acc.odd += sum.odd;
        if (!end)
            acc.scramble(lane.scramble[0], lane.scramble[1]);
        last = second;
    }

    __device__ __forceinline__ invar_xxh_hash end(const invar_xxh_lane &lane) const
    {
        auto of_last_stripe = [&](uint32_t word) {
            return __shfl_sync(0xFFFFFFFFu, word, 28 + lane.q);
        };

        return invar_xxh_end(lane, acc, INVAR_XXH_MAX,
                             make_uint4(of_last_stripe(last.x), of_last_stripe(last.y),
                                        of_last_stripe(last.z), of_last_stripe(last.w)));
    }
};

#endif
