/*
 * hash_tree.cu - hash.tree: tree hashes of tensors; hash.leaves: hashes of the leaves of segments.
 *
 * Contract (rev 1), base/hash.h and docs/arithmetic.md, section 10: XXH3-128 of leaves of 16 KiB of
 * canonical bytes, of up to 1024 digests at each level above, and of (bytes, shards, top) at the
 * root. Row i of n is in logical shard floor(i V / n); with cuts, a shard has some rows or some
 * columns. A quantized tensor gives the tree two shards for each logical one: its data, then its
 * scales.
 *
 * A warp hashes a node. 1024 digests are 16 KiB as well: the levels above the leaves are trees of
 * one shard, whose bytes are the digests below. A launch hashes one level of many tensors, which
 * are its parameters: small tensors need no launches of their own, and all tensors advance by a
 * level together. Nothing waits for the device.
 *
 * hash.leaves (rev 1) is the lowest level alone, of one tensor whose shards are the segments. It is
 * called for rows of every size, and often, so it is one launch with few parameters, whose warps
 * find the segments of their leaves themselves.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/cuda/common/tree.cuh"
#include "kernels-deterministic/cuda/sm90/hopper.cuh"
#include "kernels-deterministic/cuda/sm90/vector.cuh"
#include "kernels-deterministic/math/shards.h"

#define WARPS 4
#define BLOCKS 5 // blocks of threads on a multiprocessor
#define LEAF INVAR_TREE_LEAF_BYTES

static_assert(INVAR_TREE_FANOUT * sizeof(invar_digest) == LEAF, "nodes are leaves of digests");

/* ---- tensors and shards ---------------------------------------------------------------------- */

/* A tensor in shards; compare data_shard and scale_shard of cpu/hash_tree.c. */
struct tree_source {
    const uint8_t *data;
    int64_t rows, row_bytes, row_stride; /* row_stride in bytes */
    int64_t shards;                      /* logical shards */
    const uint8_t *scale;                /* NULL if there are no scales */
    int64_t scale_rows, scale_bytes;     /* rows that share scales, and the bytes of their scales */
    int64_t bands;                       /* number of bands, the groups of rows that share scales */
    const int64_t *first_leaf;           /* (shards of the tree) number of each shard's first leaf;
                                            NULL if there is one shard */
    int64_t leaves;
    /* used by hash.tree with several shards: how each part is cut */
    int64_t parts, atom;
    int64_t column_bytes; /* bytes of a column; 0 if parts are cut along the rows */
};

/* A shard of the tree: rows of bytes. */
struct tree_shard {
    const uint8_t *data;
    int64_t rows, row_bytes, row_stride;
};

static __host__ __device__ __forceinline__ int64_t tree_shards(const tree_source &x)
{
    return x.scale ? 2 * x.shards : x.shards;
}

/* Returns the rows [first, end) as a shard, or their scales. */
static __host__ __device__ __forceinline__ tree_shard rows_of(const tree_source &x, bool scales,
                                                              int64_t first, int64_t end)
{
    if (scales) {
        int64_t band = first / x.scale_rows, behind = end == x.rows ? x.bands : end / x.scale_rows;
        int64_t bytes = (behind - band) * x.scale_bytes;
        return {x.scale + band * x.scale_bytes, 1, bytes, bytes};
    }
    return {x.data + first * x.row_stride, end - first, x.row_bytes, x.row_stride};
}

static __host__ __device__ __forceinline__ tree_shard shard_of(const tree_source &x, int64_t number)
{
    int64_t v = x.scale ? number / 2 : number, first = 0, end = x.rows;

    if (x.shards > 1) {
        int32_t pieces = (int32_t)(x.shards / x.parts), piece = (int32_t)(v % pieces);
        int64_t rows = x.rows / x.parts, row = v / pieces * rows;
        int64_t n = x.column_bytes ? x.row_bytes / x.column_bytes : rows;
        first = invar_shard_start(n, x.atom, pieces, piece);
        end = invar_shard_start(n, x.atom, pieces, piece + 1);
        if (x.column_bytes)
            return {x.data + row * x.row_stride + first * x.column_bytes, rows,
                    (end - first) * x.column_bytes, x.row_stride};
        first += row;
        end += row;
    }
    return rows_of(x, x.scale && number % 2 == 1, first, end);
}

static __host__ __device__ __forceinline__ int64_t leaves_of(const tree_shard &shard)
{
    return invar_ceil_div(shard.rows * shard.row_bytes, LEAF);
}

#define FIND_THREADS 1024

/* Computes the number of each shard's first leaf, by one block of threads. */
static __global__ void __launch_bounds__(FIND_THREADS)
    find_leaves(int64_t *first_leaf, tree_source x)
{
    int64_t next = 0;

    for (int64_t base = 0; base < tree_shards(x); base += FIND_THREADS) {
        int64_t number = base + threadIdx.x, total;
        bool there = number < tree_shards(x);
        int64_t count = there ? leaves_of(shard_of(x, number)) : 0;
        int64_t before = invar_sum_before<FIND_THREADS>(count, &total);
        if (there)
            first_leaf[number] = next + before;
        next += total;
    }
}

/* ---- the bytes of a leaf --------------------------------------------------------------------- */

/*
 * Source of the bytes of rows with gaps. `Pieces` means that pieces of 16 bytes are aligned, and no
 * row ends inside one.
 */
template <bool Pieces> struct strided_bytes {
    const uint8_t *row; /* row in which the leaf begins */
    int64_t row_bytes, row_stride, column;

    __device__ __forceinline__ const uint8_t *address(uint32_t offset) const
    {
        int64_t down = invar_divide(column + offset, row_bytes);

        return row + down * row_stride + (column + offset - down * row_bytes);
    }

    __device__ __forceinline__ uint4 operator()(uint32_t offset) const
    {
        return Pieces ? *(const uint4 *)address(offset) : anywhere(offset);
    }

    __device__ __forceinline__ uint4 anywhere(uint32_t offset) const
    {
        uint64_t low = 0, high = 0;

#pragma unroll 1
        // not unrolled, because an address takes many instructions
        for (uint32_t i = 0; i < 8; i++) {
            low |= (uint64_t)*address(offset + i) << 8 * i;
            high |= (uint64_t)*address(offset + 8 + i) << 8 * i;
        }
        return make_uint4((uint32_t)low, (uint32_t)(low >> 32), (uint32_t)high,
                          (uint32_t)(high >> 32));
    }
};

/* ---- nodes ----------------------------------------------------------------------------------- */

/* Returns the last shard that starts at or before this leaf; it is not empty. */
__device__ __forceinline__ int64_t find_shard(const tree_source &x, int64_t leaf)
{
    int64_t low = 0, high = tree_shards(x);

    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (x.first_leaf[middle] <= leaf)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Returns whether the 16-byte pieces of every shard are contiguous and aligned. */
static bool is_linear(const tree_source *x)
{
    auto aligned = [&](const uint8_t *data, int64_t row) {
        return ((uintptr_t)data | (uintptr_t)(x->shards > 1 ? row : 0)) % 16 == 0;
    };

    return x->row_stride == x->row_bytes && x->column_bytes == 0 &&
           aligned(x->data, x->row_bytes) && (!x->scale || aligned(x->scale, x->scale_bytes));
}

/*
 * Returns the hash of a shard's leaf, computed by one warp. `buffer` belongs to the warp and is for
 * a short leaf. `Looped` saves instructions; rows with gaps always use it.
 */
template <bool Linear, bool Looped>
__device__ __forceinline__ invar_xxh_hash hash_leaf(const invar_xxh_lane &lane,
                                                    const tree_shard &shard, int64_t leaf,
                                                    uint8_t *buffer)
{
    int64_t begin = leaf * LEAF;
    int64_t left = shard.rows * shard.row_bytes - begin; // 0 or less if the leaf does not exist
    uint32_t bytes = (uint32_t)(left < 0 ? 0 : left < LEAF ? left : LEAF);
    int64_t row = Linear || left <= 0 ? 0 : invar_divide(begin, shard.row_bytes);
    invar_linear_bytes linear = {shard.data + begin};
    strided_bytes<true> pieces = {shard.data + row * shard.row_stride, shard.row_bytes,
                                  shard.row_stride, begin - row * shard.row_bytes};

    if (bytes <= INVAR_XXH_SHORT)
        return invar_tree_short(
            bytes, buffer, [&](uint32_t i) { return Linear ? linear.at[i] : *pieces.address(i); });
    if (Linear)
        return Looped ? invar_tree_looped(lane, linear, bytes)
                      : invar_tree_long(lane, linear, bytes);
    if (((uintptr_t)shard.data | (uintptr_t)(shard.row_stride | shard.row_bytes)) % 16 == 0)
        return invar_tree_looped(lane, pieces, bytes);
    return invar_tree_looped(
        lane, strided_bytes<false>{pieces.row, pieces.row_bytes, pieces.row_stride, pieces.column},
        bytes);
}

/* Writes a hash in canonical form: big-endian, the high half first. */
__device__ __forceinline__ void write_digest(uint8_t *out, invar_xxh_hash hash)
{
    for (int i = 0; i < 8; i++) {
        out[i] = (uint8_t)(hash.high >> (56 - 8 * i));
        out[8 + i] = (uint8_t)(hash.low >> (56 - 8 * i));
    }
}

/* Data of the root. */
struct tree_root {
    invar_digest *digest;
    uint64_t bytes, shards;
};

/* Writes the root: XXH3-128(le64 bytes || le64 shards || top). */
__device__ __forceinline__ void write_root(const tree_root &root, invar_xxh_hash top,
                                           uint8_t *buffer)
{
    for (int i = 0; i < 8; i++) {
        buffer[i] = (uint8_t)(root.bytes >> 8 * i);
        buffer[8 + i] = (uint8_t)(root.shards >> 8 * i);
    }
    write_digest(buffer + 16, top);
    write_digest(root.digest->bytes, invar_xxh_short(buffer, 32));
}

#define MOST_TREES 224 // trees of a launch: 32 KiB of parameters

/* One level of several trees. */
struct forest {
    int64_t first[MOST_TREES + 1]; /* number of each tree's first node among all nodes */
    tree_source x[MOST_TREES];
    tree_root root[MOST_TREES]; /* written if the level has one node */
    int count;
};

static_assert(sizeof(forest) + sizeof(void *) <= 32764, "CUDA takes no more parameters");

/* Returns the last tree that starts at or before this node; every tree has a node. */
__device__ __forceinline__ int find_tree(const forest &trees, int64_t node)
{
    int low = 0, high = trees.count;

    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (trees.first[middle] <= node)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Computes the digests of a level, one after the other; of a tree with a single node, its root. */
template <bool Linear>
static __global__ void __launch_bounds__(32 * WARPS, BLOCKS)
    hash_nodes(invar_digest *out, const __grid_constant__ forest trees)
{
    __shared__ uint8_t buffers[WARPS][INVAR_XXH_SHORT];
    uint8_t *buffer = buffers[threadIdx.x / 32];
    int64_t stride = (int64_t)gridDim.x * WARPS;
    invar_xxh_lane lane;

    lane.start();
    for (int64_t node = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
         node < trees.first[trees.count]; node += stride) {
        int tree = find_tree(trees, node);
        const tree_source &x = trees.x[tree];
        int64_t leaf = node - trees.first[tree], number = x.first_leaf ? find_shard(x, leaf) : 0;
        invar_xxh_hash hash = hash_leaf<Linear, false>(
            lane, shard_of(x, number), leaf - (x.first_leaf ? x.first_leaf[number] : 0), buffer);
        __syncwarp();
        if (threadIdx.x % 32 != 0)
            continue;
        if (x.leaves <= 1)
            write_root(trees.root[tree], hash, buffer);
        else
            invar_tree_store(&out[node], hash);
    }
}

/* ---- launches -------------------------------------------------------------------------------- */

/*
 * Returns a tensor as a source. `any` is an address for scales that have no memory because there
 * are none.
 */
static tree_source source_of(const invar_tensor *x, int64_t shards, const void *any)
{
    int64_t bits = invar_dtype_bits(x->dtype), block = invar_dtype_scale_block(x->dtype);
    tree_source source = {};

    source.data = (const uint8_t *)x->data;
    source.rows = x->shape[0];
    source.row_bytes = invar_tensor_row_elements(x) * bits / 8;
    source.row_stride = x->row_stride * bits / 8;
    source.shards = shards;
    source.scale_rows = 1;
    if (block != 0) {
        invar_tensor rows = *x;
        rows.shape[0] = 1;
        source.scale = (const uint8_t *)(x->scale ? x->scale : any);
        source.scale_rows = x->scale_rows;
        source.scale_bytes = (int64_t)invar_tensor_scale_bytes(&rows);
        source.bands = invar_tensor_bands(x);
    }
    return source;
}

static tree_source tree_of(const invar_hash_tree_args *a, int64_t number)
{
    // a tensor that is not cut has one shard, even if it is a stack
    invar_logical_split split = {a->shards, 0, 1, 1};
    if (a->cuts && a->cuts[number].shards > 1)
        split = a->cuts[number];
    tree_source source = source_of(&a->x[number], split.shards * split.experts, a->digest);

    source.parts = split.experts;
    source.atom = split.atom;
    if (split.columns)
        source.column_bytes = invar_dtype_bits(a->x[number].dtype) / 8;
    for (int64_t i = 0; i < tree_shards(source); i++)
        source.leaves += leaves_of(shard_of(source, i));
    return source;
}

static tree_root root_of(const tree_source *x, invar_digest *digest)
{
    tree_root root = {digest, (uint64_t)(x->rows * x->row_bytes), (uint64_t)tree_shards(*x)};

    if (x->scale)
        root.bytes += (uint64_t)(x->bands * x->scale_bytes);
    return root;
}

/* Returns the bytes of the table of a tree's first leaves; one shard needs none. */
static size_t table_bytes(const tree_source *x)
{
    return tree_shards(*x) > 1 ? ((size_t)tree_shards(*x) * sizeof(int64_t) + 15) / 16 * 16 : 0;
}

/* Returns the number of nodes of a tree at a level; 0 above the level of its top. */
static int64_t nodes_at(const tree_source *x, int level)
{
    int64_t nodes = x->leaves > 1 ? x->leaves : 1; // without bytes: the hash of no bytes

    for (; level > 0 && nodes > 0; level--)
        nodes = nodes > 1 ? invar_ceil_div(nodes, INVAR_TREE_FANOUT) : 0;
    return nodes;
}

size_t invar_tree_workspace_bytes(int64_t leaves)
{
    tree_source x = {};
    size_t digests = 0;

    x.leaves = leaves;
    for (int level = 0; nodes_at(&x, level) > 0; level++)
        digests += (size_t)nodes_at(&x, level);
    return digests * sizeof(invar_digest);
}

size_t invar_cuda_hash_tree_workspace(const invar_device *dev, const invar_hash_tree_args *a)
{
    size_t bytes = 0;

    (void)dev;
    for (int64_t i = 0; i < a->count; i++) {
        tree_source x = tree_of(a, i);
        bytes += table_bytes(&x) + invar_tree_workspace_bytes(x.leaves);
    }
    return bytes;
}

/* Returns the source of a level above the leaves: digests. */
static tree_source source_of_digests(const invar_digest *digests, int64_t count)
{
    int64_t bytes = count * (int64_t)sizeof *digests;
    tree_source source = {};

    source.data = (const uint8_t *)digests;
    source.rows = source.shards = source.scale_rows = 1;
    source.row_bytes = source.row_stride = bytes;
    source.leaves = invar_ceil_div(bytes, LEAF);
    return source;
}

/* State of hashing: one level of all trees after the other. */
struct tree_climb {
    invar_op op;               /* op in whose name the kernels are launched */
    bool hashed;               /* the leaves of trees with several leaves are hashed already */
    char *tables;              /* memory for the tables of the next tensors */
    const invar_digest *below; /* input of the next tree at this level, if it is not the first
                                  level */
    invar_digest *out;         /* destination of the digests of `trees` */
    forest trees;              /* trees that are to be hashed at this level */
    bool higher;               /* some tree has a level above */
};

/* Hashes the trees that have been collected. */
static invar_status hash_forest(const invar_device *dev, tree_climb *c)
{
    forest *trees = &c->trees;
    int64_t most = (int64_t)invar_cuda_of(dev)->multiprocessors * BLOCKS;
    int64_t nodes = trees->first[trees->count], blocks = invar_ceil_div(nodes, WARPS);
    bool linear = true;

    if (trees->count == 0)
        return INVAR_OK;
    for (int i = 0; i < trees->count; i++)
        linear = linear && is_linear(&trees->x[i]);
    INVAR_TRY(invar_launch(dev, c->op, linear ? hash_nodes<true> : hash_nodes<false>,
                           dim3((unsigned)(blocks < most ? blocks : most)), dim3(32 * WARPS),
                           0)(c->out, *trees));
    c->out += nodes;
    trees->count = 0;
    return INVAR_OK;
}

/* Makes the table of a tensor's first leaves; one shard needs none. */
static invar_status make_table(const invar_device *dev, tree_source *x, char **tables)
{
    if (tree_shards(*x) == 1)
        return INVAR_OK;
    INVAR_TRY(invar_launch(dev, INVAR_OP_HASH_TREE, find_leaves, dim3(1), dim3(FIND_THREADS),
                           0)((int64_t *)*tables, *x));
    x->first_leaf = (const int64_t *)*tables;
    *tables += table_bytes(x);
    return INVAR_OK;
}

/* Collects a tree if it reaches this level. */
static invar_status add_tree(const invar_device *dev, tree_climb *c, const invar_hash_tree_args *a,
                             int64_t number, int level)
{
    forest *trees = &c->trees;
    tree_source x = tree_of(a, number);
    tree_root root = root_of(&x, &a->digest[number]);
    int64_t nodes = nodes_at(&x, level);

    if (level == 0 && c->hashed && nodes > 1) {
        c->out += nodes;
        c->higher = true;
        return INVAR_OK;
    }
    if (level == 0) {
        INVAR_TRY(make_table(dev, &x, &c->tables));
    } else {
        int64_t inputs = nodes_at(&x, level - 1);
        x = source_of_digests(c->below, inputs);
        c->below += inputs;
    }
    if (nodes == 0)
        return INVAR_OK;
    trees->x[trees->count] = x;
    trees->root[trees->count] = root;
    trees->first[trees->count + 1] = trees->first[trees->count] + nodes;
    trees->count++;
    c->higher = c->higher || nodes > 1;
    return trees->count == MOST_TREES ? hash_forest(dev, c) : INVAR_OK;
}

/*
 * Hashes all trees, level by level. The workspace has all tables, then the digests of one level
 * after the other.
 */
static invar_status hash_levels(const invar_device *dev, invar_op op, bool hashed,
                                const invar_hash_tree_args *a, void *workspace)
{
    invar_digest *digests = (invar_digest *)workspace;
    tree_climb c;

    for (int64_t i = 0; i < a->count; i++) {
        tree_source x = tree_of(a, i);
        digests += table_bytes(&x) / sizeof *digests;
    }
    c.op = op;
    c.hashed = hashed;
    c.tables = (char *)workspace;
    c.below = c.out = digests;
    c.trees.count = 0;
    c.trees.first[0] = 0;
    c.higher = true;
    for (int level = 0; c.higher; level++) {
        const invar_digest *begin = c.out;
        c.higher = false;
        for (int64_t i = 0; i < a->count; i++)
            INVAR_TRY(add_tree(dev, &c, a, i, level));
        INVAR_TRY(hash_forest(dev, &c));
        c.below = begin;
    }
    return INVAR_OK;
}

invar_status invar_cuda_hash_tree(const invar_device *dev, const invar_hash_tree_args *a,
                                  void *workspace)
{
    return hash_levels(dev, INVAR_OP_HASH_TREE, false, a, workspace);
}

invar_status invar_cuda_tree_rest(const invar_device *dev, invar_op op,
                                  const invar_hash_tree_args *a, void *workspace)
{
    return hash_levels(dev, op, true, a, workspace);
}

/* ---- segments -------------------------------------------------------------------------------- */

/* Rows [first, end) of a segment. */
struct segment {
    int64_t first, end;
};

/*
 * Returns segment `number`. It is empty if it does not exist or is not within the rows, so that
 * nothing of it is read. The first segment must begin with the tensor: if there is no other, only
 * that address is known to be aligned.
 */
__device__ __forceinline__ segment segment_at(const tree_source &x, const int64_t *start,
                                              int64_t number)
{
    if (number >= x.shards)
        return {0, 0};
    int64_t first = start[number], end = start[number + 1];
    bool good = (number == 0 ? first == 0 : first >= 0) && first <= end && end <= x.rows;
    return {good ? first : 0, good ? end : 0};
}

__device__ __forceinline__ int64_t leaves_in(const tree_source &x, const segment &rows)
{
    int64_t leaves = leaves_of(rows_of(x, false, rows.first, rows.end));

    return x.scale ? leaves + leaves_of(rows_of(x, true, rows.first, rows.end)) : leaves;
}

/* Position of a warp in the segments: number of earlier segments, and of their leaves. */
struct segment_cursor {
    int64_t segments, leaves;
};

/*
 * Returns the shard of a leaf; *leaf = its number there. Called by one warp, whose leaves ascend.
 */
__device__ __forceinline__ tree_shard find_segment(int64_t *leaf, segment_cursor *walk,
                                                   const tree_source &x, const int64_t *start)
{
    int thread = (int)threadIdx.x % 32;

#pragma unroll 1
    for (; walk->segments < x.shards; walk->segments += 32) {
        segment rows = segment_at(x, start, walk->segments + thread);
        int64_t own = leaves_in(x, rows), up_to = own, left = *leaf - walk->leaves;
        for (int step = 1; step < 32; step *= 2) {
            int64_t before = __shfl_up_sync(0xFFFFFFFFu, up_to, step);
            up_to += thread >= step ? before : 0;
        }
        int holder = __ffs((int)__ballot_sync(0xFFFFFFFFu, left < up_to)) - 1;
        if (holder < 0) {
            walk->leaves += __shfl_sync(0xFFFFFFFFu, up_to, 31);
            continue;
        }
        left -= __shfl_sync(0xFFFFFFFFu, up_to - own, holder);
        rows = {__shfl_sync(0xFFFFFFFFu, rows.first, holder),
                __shfl_sync(0xFFFFFFFFu, rows.end, holder)};
        tree_shard data = rows_of(x, false, rows.first, rows.end);
        bool scales = left >= leaves_of(data);
        *leaf = scales ? left - leaves_of(data) : left;
        return scales ? rows_of(x, true, rows.first, rows.end) : data;
    }
    *leaf = 0;
    return {x.data, 0, x.row_bytes, x.row_stride};
}

/*
 * Records a fault if the segments are invalid or have another number of leaves than the host
 * passed. Called by the complete block.
 */
__device__ void check_segments(const tree_source &x, const int64_t *start, invar_cuda_fault *fault)
{
    bool good = invar_segments_good(start, x.shards, x.rows, INVAR_OP_HASH_LEAVES, fault);
    int64_t own = 0, leaves;

    for (int64_t i = threadIdx.x; i < x.shards; i += 32 * WARPS)
        own += leaves_in(x, segment_at(x, start, i));
    (void)invar_sum_before<32 * WARPS>(own, &leaves);
    if (good && leaves != x.leaves && threadIdx.x == 0)
        invar_report(fault, INVAR_OP_HASH_LEAVES, INVAR_CUDA_COUNT, leaves);
}

/* Hashes the leaves of segments. The first block only checks, and no other waits for it. */
template <bool Linear>
static __global__ void __launch_bounds__(32 * WARPS, BLOCKS)
    hash_segments(invar_digest *out, const __grid_constant__ tree_source x, const int64_t *start,
                  invar_cuda_fault *fault)
{
    __shared__ uint8_t buffers[WARPS][INVAR_XXH_SHORT];
    uint8_t *buffer = buffers[threadIdx.x / 32];
    int64_t stride = (int64_t)(gridDim.x - 1) * WARPS;
    segment_cursor walk = {0, 0};
    invar_xxh_lane lane;

    lane.start();
    invar_grid_begin();
    if (blockIdx.x == 0) {
        check_segments(x, start, fault);
        return;
    }
    for (int64_t leaf = (int64_t)(blockIdx.x - 1) * WARPS + threadIdx.x / 32; leaf < x.leaves;
         leaf += stride) {
        int64_t number = leaf;
        tree_shard shard = find_segment(&number, &walk, x, start);
        invar_xxh_hash hash = hash_leaf<Linear, true>(lane, shard, number, buffer);
        __syncwarp();
        if (threadIdx.x % 32 == 0)
            write_digest(out[leaf].bytes, hash);
    }
}

INVAR_NO_WORKSPACE(cuda, hash_leaves)

invar_status invar_cuda_hash_leaves(const invar_device *dev, const invar_hash_leaves_args *a,
                                    void *workspace)
{
    tree_source x = source_of(&a->x, a->samples.count, a->digest);
    int64_t most = (int64_t)invar_cuda_of(dev)->multiprocessors * BLOCKS;
    int64_t blocks = invar_ceil_div(a->leaves, WARPS);

    (void)workspace;
    x.leaves = a->leaves;
    if (x.shards == 0)
        return INVAR_OK;
    return invar_launch_early(
        dev, INVAR_OP_HASH_LEAVES, is_linear(&x) ? hash_segments<true> : hash_segments<false>,
        dim3((unsigned)(1 + (blocks < most ? blocks : most))), dim3(32 * WARPS),
        0)(a->digest, x, a->samples.offsets, invar_cuda_of(dev)->fault);
}
