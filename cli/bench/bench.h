/*
 * bench.h - interface between the files of invar bench for single ops.
 *
 * Each op has one function (ops.c, experts.c), named after it, that makes operands (operands.c) and
 * runs cases. A case is timed (timing.c) and printed as a row (bench.c). tests/bench adds the calls
 * of peers and, on a GPU, compares results with those of the CPU.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_CLI_BENCH_BENCH_H
#define INVAR_CLI_BENCH_BENCH_H

#include <jansson.h>
#include <stdbool.h>

#include "kernels-deterministic/ops.h"

/* Members of the JSON. */
#define INVAR_BENCH_ROW                                                                            \
    "{op text, shape text, type text, numerics text, seconds real, rate real, unit text,"          \
    " share~ real, threads~ int}"
#define INVAR_BENCH_OPS_RESULT "{rows [" INVAR_BENCH_ROW "], error~ text} (ops)"

typedef enum invar_bench_unit {
    INVAR_BENCH_UNIT_MAC,  /* multiply-adds */
    INVAR_BENCH_UNIT_BYTE, /* bytes read or written; accumulators count twice */
    INVAR_BENCH_UNIT_TOKEN
} invar_bench_unit;

enum { INVAR_BENCH_SETS = 8, INVAR_BENCH_RUNNERS = 6, INVAR_BENCH_ROUNDS = 7 };

typedef struct invar_bench_case {
    invar_op op;
    /* arguments for `sets` sets of operands, used in turn, so that they leave the cache */
    const void *args[INVAR_BENCH_SETS];
    int sets;
    char shape[64];
    invar_dtype type;
    invar_bench_unit unit;
    double work; /* units of work per call */
} invar_bench_case;

/* Calls that are timed in turn with others: our op, a copy, or the function of a peer. */
typedef struct invar_bench_runner {
    const char *name; /* NULL for our op */
    /* queues a call; NULL to run the op */
    invar_status (*run)(const invar_device *dev, const void *args, void *workspace);
    const void *const *args; /* (sets) */
    int sets;
    double seconds; /* result: median of the seconds per call */
    int64_t calls;  /* calls per burst */
    invar_device_graph *graph;
    double times[INVAR_BENCH_ROUNDS];
} invar_bench_runner;

/* Calls beside each op, and the end of its row; used by tests/bench. */
typedef struct invar_bench_peers {
    /* Examines the results of a case on a GPU before it is timed. */
    invar_status (*check)(const invar_bench_case *c, const invar_device *dev);
    /* Writes the peers of a case to `out` and returns their number. */
    int (*find)(invar_bench_runner *out, const invar_bench_case *c, const invar_device *dev);
    /*
     * Adds them, after a copy if there is one, to the JSON of a row, or prints them at its end if
     * `row` is NULL.
     */
    void (*print)(const invar_bench_case *c, double seconds, const invar_bench_runner *peers,
                  int count, const invar_device *dev, json_t *row);
} invar_bench_peers;

typedef struct invar_bench_options {
    invar_device_kind device;
    const char *only; /* substring of the names of ops */
    int threads;
    bool json;
    double burst;                   /* seconds; 0 for 10 ms on a GPU, 20 ms on a CPU */
    const invar_bench_peers *peers; /* NULL if there are none */
} invar_bench_options;

/* Sizes of the cases on a device. */
typedef struct invar_bench_sizes {
#define SIZE(name, cpu, gpu) int64_t name;
#include "cli/bench/sizes.def"
#undef SIZE
} invar_bench_sizes;

enum { INVAR_BENCH_BLOCKS = 160 };

/* One run of invar bench. */
typedef struct invar_bench {
    const invar_bench_options *options;
    const invar_bench_sizes *sizes;
    invar_device dev;
    bool local; /* the device is a GPU */
    invar_pool *pools[2];
    int n_pools;
    double peak[2];      /* multiply-adds per second of the peak, by pool; 0 before the first use */
    invar_status status; /* first failure of a function that makes operands */
    uint16_t *noise;     /* bf16 values */
    void *blocks[INVAR_BENCH_BLOCKS]; /* operands of the current case */
    int n_blocks;
    invar_op op;      /* current op */
    bool first_of_op; /* no row of the current op was printed yet */
    json_t *rows;     /* JSON of the rows; NULL to print text */
} invar_bench;

/* Returns INVAR_E_INVALID if no op has `only` in its name. */
invar_status invar_bench_check_selection(const char *only) INVAR_MUST_USE;

/* Runs the benchmarks of the selected ops and prints their rows; on a CPU with 1 thread and all. */
invar_status invar_bench_run(const invar_bench_options *options) INVAR_MUST_USE;

/* ---- ops.c, experts.c: the cases of each op -------------------------------------------------- */

#define INVAR_OP(ID, fn, name, revision, numerics)                                                 \
    invar_status invar_bench_op_##fn(invar_bench *b) INVAR_MUST_USE;
#include "kernels-deterministic/ops.def"
#undef INVAR_OP

/* ---- operands.c: memory of the current case -------------------------------------------------- */

/*
 * These functions return memory of the device that is valid until the case has run. After a failure
 * they return NULL or absent tensors, and the case is not run.
 */
void *invar_bench_alloc(invar_bench *b, size_t bytes);
void *invar_bench_array(invar_bench *b, const void *from, size_t bytes); /* a copy of host memory */

/* Return noise, zeros, noise with one index, noise with heads. */
invar_tensor invar_bench_make(invar_bench *b, invar_dtype dtype, int64_t rows, int64_t cols);
invar_tensor invar_bench_zero(invar_bench *b, invar_dtype dtype, int64_t rows, int64_t cols);
invar_tensor invar_bench_vector(invar_bench *b, invar_dtype dtype, int64_t n);
invar_tensor invar_bench_heads(invar_bench *b, int64_t rows, int64_t heads, int64_t dim);

/* Returns noise in a quantized format, whose weights have fewer scales; or in another format. */
invar_tensor invar_bench_quantized(invar_bench *b, invar_dtype dtype, bool weight, int64_t rows,
                                   int64_t cols);
invar_tensor invar_bench_quantized_output(invar_bench *b, invar_dtype dtype, bool weight,
                                          int64_t rows, int64_t cols);

/* Returns the i32 values i * step % bound. */
invar_tensor invar_bench_indices(invar_bench *b, int64_t rows, int64_t cols, int64_t bound,
                                 int64_t step);

/* Divides rows into `count` equal parts. */
invar_row_offsets invar_bench_offsets(invar_bench *b, int64_t rows, int64_t count);

/* Runs an op once without timing, to prepare the operands of another op. */
void invar_bench_prepare(invar_bench *b, invar_op op, const void *args);

/* Makes further sets of operands, until all sets together exceed the cache of a GPU. */
void invar_bench_make_sets(invar_bench *b, invar_bench_case *c,
                           invar_op_args copies[INVAR_BENCH_SETS]);
/* Returns the bytes of the tensors in the arguments; those that are added to count twice. */
double invar_bench_bytes(invar_op op, const void *args);
void invar_bench_free_operands(invar_bench *b);

/* ---- bench.c: running a case ----------------------------------------------------------------- */

/* Run a case of the current op: shape, args and unit with a number of its own, or all bytes. */
#define INVAR_BENCH_SHAPE(...) ((const int64_t[]){__VA_ARGS__, 0})
invar_status invar_bench_case_moves(invar_bench *b, const void *args, invar_dtype type,
                                    const int64_t *shape) INVAR_MUST_USE;
invar_status invar_bench_case_works(invar_bench *b, const void *args, invar_dtype type,
                                    const int64_t *shape, invar_bench_unit unit,
                                    double work) INVAR_MUST_USE;
/* Like invar_bench_case_works, with a remark behind the shape. */
invar_status invar_bench_case_run(invar_bench *b, invar_bench_case *c, const int64_t *shape,
                                  const char *remark) INVAR_MUST_USE;

/* ---- timing.c -------------------------------------------------------------------------------- */

/* Returns the seconds of a monotonic clock. */
double invar_bench_now(void);

/* Returns the median of `count` times. Sorts them. */
double invar_bench_median(double *times, int64_t count);

/*
 * Times runners in turn, in bursts of that many seconds; with `graphs`, short calls of a burst are
 * captured as one graph if the device can.
 */
invar_status invar_bench_measure(invar_bench_runner *runners, int count, const invar_device *dev,
                                 invar_op op, double burst, bool graphs) INVAR_MUST_USE;
/* Allocates exactly the scratch that a call needs; the caller frees dev->scratch. */
invar_status invar_bench_begin_scratch(invar_device *dev, invar_op op,
                                       const void *args) INVAR_MUST_USE;
/* Runs an op once with scratch of its own. */
invar_status invar_bench_run_once(const invar_device *dev, invar_op op,
                                  const void *args) INVAR_MUST_USE;

/*
 * Returns the next of pseudo-random, approximately normal numbers with the deviation
 * INVAR_BENCH_NOISE.
 */
float invar_bench_noise(uint64_t *state);
#define INVAR_BENCH_NOISE 0.577f

#endif
