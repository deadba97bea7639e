/*
 * kv_write.cu - kv.write: copies keys and values of new rows into the pages of a cache.
 *
 * Bits are copied, a few rows by each block of threads: a warp finds their slots while the rows are
 * in flight. One more block checks whether two rows fill one slot, which the host cannot see: which
 * of them stays would depend on the order of blocks.
 *
 * Numerics contract (rev 1): docs/arithmetic.md, section 8.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/cuda/sm90/attention/forward.cuh"

namespace
{

/* ---- slots that two rows fill ---------------------------------------------------------------- */

/* Finds the position of a row in sequence `number`. Returns false if the row is not in it. */
__device__ bool find_position(invar_attention_sequence *out, int64_t *position_out,
                              const invar_attention_problem &p, int64_t row, int64_t number)
{
    if (!invar_attention_find(out, p, number))
        return false;
    *position_out = row - out->row0;
    return *position_out >= out->before && *position_out < out->length;
}

/* Finds the sequence of a row and the row's position in it. Returns false if there is none. */
__device__ bool find_sequence(invar_attention_sequence *out, int64_t *position_out,
                              const invar_attention_problem &p, int64_t row)
{
    // the last sequence that begins at or before the row: it is not empty
    int64_t low = 0, high = p.rows.count - 1;

    while (low < high) {
        int64_t middle = (low + high + 1) / 2;
        if (p.rows.offsets[middle] <= row)
            low = middle;
        else
            high = middle - 1;
    }
    return find_position(out, position_out, p, row, low);
}

enum { TABLE_PAGES = 2048 }; // entries of the page table in shared memory

/* Slots of a page that a row and the next rows of its sequence fill. */
struct filled {
    int64_t first, end;

    __device__ filled(const invar_attention_problem &p, const invar_attention_sequence &s,
                      int64_t position)
        : first(position % p.page_size), end(first + s.length - position)
    {
        end = end < p.page_size ? end : p.page_size;
    }
};

/*
 * Puts a page that is filled from this position on into the table, with its first row. Records a
 * fault if another sequence, or another position of this one, fills the same slots.
 */
__device__ void claim_page(unsigned long long *table, const invar_attention_problem &p,
                           const invar_attention_sequence &s, int64_t position, uint32_t page,
                           uint32_t hash)
{
    unsigned long long mine = (uint64_t)(page + 1) << 32 | (uint32_t)(s.row0 + position);
    filled here(p, s, position);

    for (uint32_t at = hash, tries = 0; tries < TABLE_PAGES; at++, tries++) {
        unsigned long long other = atomicCAS(&table[at % TABLE_PAGES], 0ull, mine);
        invar_attention_sequence t;
        int64_t start;
        if (other == 0)
            return;
        if (other >> 32 != page + 1 || !find_sequence(&t, &start, p, (uint32_t)other))
            continue;
        filled there(p, t, start);
        if (here.first < there.end && there.first < here.end) {
            invar_report(p.fault, p.op, INVAR_CUDA_REPEATED, page);
            return;
        }
    }
}

/*
 * Pages of several sequences that find_repeated loads at once, because waiting for memory is its
 * main cost.
 */
struct page_batch {
    static constexpr int COUNT = 4;
    invar_attention_sequence s[COUNT];
    int64_t index[COUNT]; // index of the page in its sequence
    int32_t page[COUNT];  // -1 if there is none

    /* Loads the sequences n, n + step, ..., and of each the `part`-th page that it fills. */
    __device__ __forceinline__ page_batch(const invar_attention_problem &p, int64_t n, int64_t step,
                                          int part)
    {
        int64_t begin[COUNT], end[COUNT], length[COUNT];

#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            s[i].number = n + i * step;
            bool there = s[i].number < p.rows.count;
            begin[i] = there ? p.rows.offsets[s[i].number] : 0;
            end[i] = there ? p.rows.offsets[s[i].number + 1] : 0;
            length[i] = there ? p.lengths[s[i].number] : 0;
        }
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            s[i].length = length[i];
            s[i].before = length[i] - (end[i] - begin[i]);
            s[i].row0 = begin[i] - s[i].before;
            index[i] = s[i].before / p.page_size + part;
            page[i] = page_at(p, i);
        }
    }

    /*
     * Returns a page, or -1 if there is none or it is out of range; the block that has the row
     * records the fault.
     */
    __device__ __forceinline__ int32_t page_at(const invar_attention_problem &p, int i) const
    {
        bool good = s[i].before >= 0 && s[i].before < s[i].length && index[i] < p.max_pages &&
                    index[i] * p.page_size < s[i].length && s[i].row0 + s[i].before >= 0 &&
                    s[i].row0 + s[i].length <= p.n_rows;
        int32_t at = good ? p.pages[s[i].number * p.pages_stride + index[i]] : -1;

        return at < p.n_pages ? at : -1;
    }
};

/*
 * Records a fault if two rows fill one slot. Called by one block, and takes no longer than the
 * other blocks: about as many threads share a sequence as it has pages.
 */
__device__ void find_repeated(const invar_attention_problem &p,
                              unsigned long long table[TABLE_PAGES])
{
    int64_t pages = p.n_rows / p.page_size + 2 * p.rows.count;
    pages = pages < p.n_rows ? pages : p.n_rows;
    // if there are too many pages for the table, they are checked in several passes
    uint32_t turns = (uint32_t)invar_ceil_div(pages, TABLE_PAGES / 2);
    int share = 1;
    while (share < 32 && 2 * share * p.rows.count <= pages)
        share *= 2;
    int64_t step = (int)blockDim.x / share, first = (int)threadIdx.x / share;

    for (uint32_t turn = 0; turn < turns; turn++) {
        for (int i = (int)threadIdx.x; i < TABLE_PAGES; i += (int)blockDim.x)
            table[i] = 0;
        __syncthreads();
        for (int64_t n = first; n < p.rows.count; n += step * page_batch::COUNT) {
            page_batch batch(p, n, step, (int)threadIdx.x % share);
#pragma unroll
            for (int i = 0; i < page_batch::COUNT; i++)
                while (batch.page[i] >= 0) {
                    const invar_attention_sequence &s = batch.s[i];
                    int64_t begin = batch.index[i] * p.page_size;
                    uint32_t hash = (uint32_t)batch.page[i] * 0x9E3779B1u >> 8;
                    if (hash / TABLE_PAGES % turns == turn)
                        claim_page(table, p, s, begin < s.before ? s.before : begin,
                                   (uint32_t)batch.page[i], hash);
                    batch.index[i] += share;
                    batch.page[i] = batch.page_at(p, i);
                }
        }
        __syncthreads();
    }
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* Rows of keys or values and the cache that they go to, in units of WORD. */
template <typename WORD> struct slots {
    WORD *cache;
    const WORD *rows;
    int64_t page_stride, row_stride;
};

enum { ROWS = 4, MOST_THREADS = 256 }; // rows and threads of a block

/* Slot of a row in the cache. */
struct slot {
    int64_t page, place; /* page is -1 if the row goes nowhere */
};

/*
 * Finds the slots of `rows` rows from `first` on, one in each lane of a warp. The lanes search
 * together, in few steps, because each step waits for memory.
 */
__device__ slot find_slots(const invar_attention_problem &p, int64_t first, int rows)
{
    int lane = (int)threadIdx.x % 32, ahead = 0;
    int64_t low = 0, high = p.rows.count - 1, row = first + lane, position;
    invar_attention_sequence s;

    while (low < high) { // the last sequence that begins at or before the first row
        int64_t step = (high - low + 31) / 32, probe = low + (lane + 1) * step;
        bool before = probe <= high && p.rows.offsets[probe] <= first;
        low += __popc(__ballot_sync(0xFFFFFFFFu, before)) * step;
        high = min(high, low + step - 1);
    }
    int64_t next = low + 1 + lane;
    next = next < p.rows.count ? p.rows.offsets[next] : INT64_MAX;
    for (int i = 0; i < rows; i++) {
        int begun = __popc(__ballot_sync(0xFFFFFFFFu, next <= first + i));
        ahead = lane == i ? begun : ahead;
    }
    if (lane >= rows || row >= p.n_rows)
        return {-1, 0};
    bool there = ahead < 32 ? find_position(&s, &position, p, row, low + ahead)
                            : find_sequence(&s, &position, p, row);
    if (!there)
        return {-1, 0};
    uint32_t at = (uint32_t)position, size = (uint32_t)p.page_size; // both are below 2^31
    return {invar_attention_page(p, s, at / size), at % size};
}

/* Writes the rows of a block; the first block checks all rows instead. */
template <typename WORD>
__global__ void __launch_bounds__(MOST_THREADS, 4)
    write_rows(slots<WORD> k, slots<WORD> v, int64_t words,
               const __grid_constant__ invar_attention_problem p)
{
    __shared__ slot to[ROWS];
    __shared__ unsigned long long table[TABLE_PAGES];
    int64_t first = ((int64_t)blockIdx.x - 1) * ROWS;
    WORD key[ROWS], value[ROWS];
    auto load = [&](int64_t i) {
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            if (i < words && first + r < p.n_rows) {
                key[r] = k.rows[(first + r) * k.row_stride + i];
                value[r] = v.rows[(first + r) * v.row_stride + i];
            }
    };

    invar_grid_begin();
    if (blockIdx.x == 0) {
        find_repeated(p, table);
        return;
    }
    load(threadIdx.x);
    if (threadIdx.x < 32) {
        slot mine = find_slots(p, first, ROWS);
        if (threadIdx.x < ROWS)
            to[threadIdx.x] = mine;
    }
    __syncthreads();
    for (int64_t i = threadIdx.x; i < words; i += blockDim.x) {
        if (i >= blockDim.x)
            load(i);
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            if (to[r].page >= 0) {
                k.cache[to[r].page * k.page_stride + to[r].place * words + i] = key[r];
                v.cache[to[r].page * v.page_stride + to[r].place * words + i] = value[r];
            }
    }
}

/* ---- rows by bulk copies --------------------------------------------------------------------- */

enum {
    BULK_WARPS = 4,
    BULK_ROWS = 2 /* rows of a warp */,
    BULK_BYTES = 2048 /* bytes of a row that are copied at once */
};
#define BULK_SHARED (BULK_WARPS * BULK_ROWS * 2 * BULK_BYTES)
static_assert(BULK_SHARED >= TABLE_PAGES * sizeof(unsigned long long), "room for the table");

/*
 * Like write_rows, for rows that are multiples of 16 bytes: a lane has a row, which it copies to
 * shared memory and, when its slot is known, from there to the cache. Rows of more than BULK_BYTES
 * are copied in parts.
 */
__global__ void __launch_bounds__(32 * BULK_WARPS)
    copy_rows(slots<uint4> k, slots<uint4> v, int64_t words,
              const __grid_constant__ invar_attention_problem p)
{
    extern __shared__ __align__(128) uint8_t memory[];
    __shared__ uint64_t barriers[BULK_WARPS];
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    uint64_t *barrier = &barriers[warp];
    int64_t first = (((int64_t)blockIdx.x - 1) * BULK_WARPS + warp) * BULK_ROWS;
    int64_t row = first + lane;
    bool live = lane < BULK_ROWS && row < p.n_rows;
    uint8_t *key = memory + (warp * BULK_ROWS + lane) * 2 * BULK_BYTES, *value = key + BULK_BYTES;
    uint32_t parity = 0;
    slot to;

    if (lane == 0) {
        invar_barrier_init(barrier, BULK_ROWS);
        invar_barrier_init_done();
    }
    __syncwarp();
    invar_grid_begin();
    if (blockIdx.x == 0) {
        find_repeated(p, (unsigned long long *)memory);
        return;
    }
    for (int64_t at = 0; at < words; at += BULK_BYTES / 16) {
        uint32_t left = (uint32_t)(words - at < BULK_BYTES / 16 ? words - at : BULK_BYTES / 16);
        uint32_t bytes = left * 16;
        if (live) {
            invar_copy_wait_read<0>();
            invar_barrier_expect(barrier, 2 * bytes);
            invar_copy_in_flat(key, k.rows + row * k.row_stride + at, bytes, barrier);
            invar_copy_in_flat(value, v.rows + row * v.row_stride + at, bytes, barrier);
        } else if (lane < BULK_ROWS) {
            invar_barrier_arrive(barrier);
        }
        if (at == 0)
            to = find_slots(p, first, BULK_ROWS);
        invar_barrier_wait(barrier, parity);
        parity ^= 1;
        if (live && to.page >= 0) {
            int64_t place = to.place * words + at;
            invar_copy_out_flat(k.cache + to.page * k.page_stride + place, key, bytes);
            invar_copy_out_flat(v.cache + to.page * v.page_stride + place, value, bytes);
            invar_copy_commit();
        }
    }
    invar_copy_wait_read<0>();
}

template <typename WORD>
slots<WORD> slots_of(const invar_tensor *cache, const invar_tensor *rows, int64_t per_word)
{
    return {(WORD *)cache->data, (const WORD *)rows->data, cache->row_stride / per_word,
            rows->row_stride / per_word};
}

template <typename WORD>
invar_status write_all(const invar_device *dev, const invar_kv_write_args *a,
                       const invar_attention_problem &p)
{
    int64_t per_word = (int64_t)sizeof(WORD) * 8 / invar_dtype_bits(a->k.dtype);
    int64_t words = invar_tensor_row_elements(&a->k) / per_word;
    unsigned threads = words < 32             ? 32
                       : words < MOST_THREADS ? (unsigned)(words + 31) / 32 * 32
                                              : (unsigned)MOST_THREADS;
    dim3 grid((unsigned)(invar_ceil_div(p.n_rows, ROWS) + 1));

    return invar_launch_early(dev, INVAR_OP_KV_WRITE, write_rows<WORD>, grid, dim3(threads),
                              0)(slots_of<WORD>(&a->cache.k, &a->k, per_word),
                                 slots_of<WORD>(&a->cache.v, &a->v, per_word), words, p);
}

invar_status copy_all(const invar_device *dev, const invar_kv_write_args *a,
                      const invar_attention_problem &p)
{
    int64_t per_word = 128 / invar_dtype_bits(a->k.dtype);
    int64_t words = invar_tensor_row_elements(&a->k) / per_word;
    dim3 grid((unsigned)(invar_ceil_div(p.n_rows, BULK_WARPS * BULK_ROWS) + 1));

    return invar_launch_early(dev, INVAR_OP_KV_WRITE, copy_rows, grid, dim3(32 * BULK_WARPS),
                              BULK_SHARED)(slots_of<uint4>(&a->cache.k, &a->k, per_word),
                                           slots_of<uint4>(&a->cache.v, &a->v, per_word), words, p);
}

/* Returns whether rows of t can be moved in words of 16 bytes. */
bool is_16_byte_aligned(const invar_tensor *t, int64_t elements)
{
    int64_t bytes = invar_dtype_bits(t->dtype) / 8;

    return ((uintptr_t)t->data & 15) == 0 && t->row_stride * bytes % 16 == 0 &&
           elements * bytes % 16 == 0;
}

} // namespace

INVAR_NO_WORKSPACE(cuda, kv_write)

invar_status invar_cuda_kv_write(const invar_device *dev, const invar_kv_write_args *args,
                                 void *workspace)
{
    invar_attention_problem p = {};
    int64_t elements = invar_tensor_row_elements(&args->k);

    (void)workspace;
    if (elements == 0 || args->k.shape[0] == 0)
        return INVAR_OK;
    p.op = INVAR_OP_KV_WRITE;
    p.fault = invar_cuda_of(dev)->fault;
    p.rows = args->rows;
    p.n_rows = args->k.shape[0];
    p.lengths = args->lengths;
    p.paged = true;
    p.pages = (const int32_t *)args->cache.pages.data;
    p.pages_stride = args->cache.pages.row_stride;
    p.page_size = args->cache.k.shape[1];
    p.n_pages = args->cache.k.shape[0];
    p.max_pages = args->cache.pages.shape[1];
    if (is_16_byte_aligned(&args->cache.k, elements) &&
        is_16_byte_aligned(&args->cache.v, elements) && is_16_byte_aligned(&args->k, elements) &&
        is_16_byte_aligned(&args->v, elements))
        return copy_all(dev, args, p);
    if (args->k.dtype == INVAR_DTYPE_BF16)
        return write_all<uint16_t>(dev, args, p);
    return write_all<uint32_t>(dev, args, p);
}
