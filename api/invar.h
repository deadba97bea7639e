/*
 * invar.h - libinvar: ledger, hashes, ops and files of Invar for programs in other languages.
 *
 * A stable C interface. It needs no other header of Invar, passes plain structs of numbers and
 * pointers, and exports names that begin with invar_api_ only. The Python package (python/) is
 * made of nothing else. INVAR_API_ABI rises when a function or a struct changes; functions may be
 * added without that. A program asks invar_api_abi() before anything else.
 *
 * Functions that return int32_t return 0, or a negative status: invar_api_error() then says what
 * is wrong, in one line, and invar_api_status_name() gives the status as a word, "NOTFOUND". Texts
 * are UTF-8 and end with a NUL; texts and arrays are read during the call only. A digest is 16
 * bytes. What a ledger is and what it promises is in docs/ledger.md.
 *
 * An object belongs to one thread at a time; different objects may be used by different threads.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_API_INVAR_H
#define INVAR_API_INVAR_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define INVAR_API __attribute__((visibility("default")))
#else
#define INVAR_API
#endif

#define INVAR_API_ABI 2
#define INVAR_API_DIGEST_BYTES 16

/* ---- the library ----------------------------------------------------------------------------- */

INVAR_API int32_t invar_api_abi(void);         /* INVAR_API_ABI of the library */
INVAR_API const char *invar_api_version(void); /* of Invar, "0.1.0" */

/* Of this thread's last failure; never NULL. Borrowed until the next call. */
INVAR_API const char *invar_api_error(void);
INVAR_API const char *invar_api_status_name(int32_t status);

/* Texts that a function has handed out. NULL is allowed. */
INVAR_API void invar_api_free(void *text);

/* ---- hashes ---------------------------------------------------------------------------------- */

/* A tensor, described as DLPack does. */
typedef struct invar_api_tensor {
    void *data;             /* its first element; may be NULL where there is none */
    const int64_t *shape;   /* (dims) */
    const int64_t *strides; /* (dims) elements from one to the next; NULL: dense, row by row */
    int32_t dims;           /* at most INVAR_API_MAX_DIMS; 0: one element */
    int32_t code;           /* DLPack's code of the type; not looked at by the hash */
    int32_t bits;           /* of an element: a multiple of 8, at most 128 */
    int32_t place;          /* of its memory: INVAR_API_HOST or INVAR_API_DEVICE */
} invar_api_tensor;

#define INVAR_API_MAX_DIMS 64
#define INVAR_API_HOST 0
#define INVAR_API_DEVICE 1 /* a GPU's; for ops only */

/* XXH3-128, as `xxhsum -H2` prints it. */
INVAR_API int32_t invar_api_hash_bytes(uint8_t *out, const void *data, uint64_t bytes);

/*
 * The tree hash of each tensor's elements, row by row: docs/ledger.md, and what the engine records
 * for a tensor of one shard. `out` has room for `count` digests; any number of threads gives the
 * same ones.
 */
INVAR_API int32_t invar_api_hash_tensors(uint8_t *out, const invar_api_tensor *tensors,
                                         int64_t count, int32_t threads);

/* ---- ops ------------------------------------------------------------------------------------- */

/* Where ops run, with threads and scratch of its own. Calls on one device wait for each other. */
typedef struct invar_api_device invar_api_device;

/*
 * `kind` is "cpu", "cuda" or "cuda:N"; `numerics` "ieee", or "sm90", which computes on a CPU what
 * an H200 does. Bits do not depend on the threads. CUDA needs the module invar-cuda.so of the same
 * build beside the library, in lib/invar or in the folder INVAR_MODULES; the status NODEVICE says
 * why there is none.
 */
INVAR_API int32_t invar_api_device_open(invar_api_device **out, const char *kind,
                                        const char *numerics, int32_t threads);
/* NULL is allowed. */
INVAR_API void invar_api_device_close(invar_api_device *device);

#define INVAR_API_TENSOR 0
#define INVAR_API_INTEGER 1
#define INVAR_API_FLOAT 2

/*
 * One argument of an op, by the name of its field: kernels-deterministic/op_fields.def. Tensors are
 * f32, bf16, i32 or i64 of 1 to 4 dimensions, of which only the first may be strided; segments are
 * vectors of i64. All lie in the memory of the device, except the fields of HOST there.
 *
 * A quantized tensor has codes under the name of its field, and beside it NAME.scale: a dense
 * tensor of as many scales as there are blocks. e4m3 codes (DLPack's code 10) with f32 scales are
 * fp8, with E8M0 scales (14, or plain bytes) mxfp8; codes of 4 bits (code 0; the shape counts
 * codes, two a byte) with bf16 scales are int4. NAME.scale_rows is 128 for the blocks of fp8
 * weights (without it 1), NAME.scale_period the rows after which blocks begin anew, those of an
 * expert (without it 0).
 */
typedef struct invar_api_argument {
    const char *name;
    invar_api_tensor tensor; /* kind INVAR_API_TENSOR */
    int64_t integer;         /* kind INVAR_API_INTEGER */
    double real;             /* kind INVAR_API_FLOAT */
    int32_t kind;
    int32_t reserved; /* 0 */
} invar_api_argument;

/*
 * Runs an op, "linear.fwd", and returns when it has run. Arguments that are wrong, missing or
 * unknown are refused before anything is written; docs/arithmetic.md says what each op computes, in
 * which order.
 */
INVAR_API int32_t invar_api_call(invar_api_device *device, const char *op,
                                 const invar_api_argument *arguments, int64_t count);

/*
 * The same on a GPU in a CUDA stream of the caller's (a cudaStream_t, NULL: the default one): the
 * op runs behind what is in the stream, and the call may return before that. The host does not look
 * at memory there, so that an index out of range is replaced by a harmless one, and reported by a
 * later call or by the wait. Calls on one device run in their order, whatever their streams; a
 * stream outlives the next call. Streams that a CUDA graph captures are not offered.
 */
INVAR_API int32_t invar_api_call_in(invar_api_device *device, void *stream, const char *op,
                                    const invar_api_argument *arguments, int64_t count);

/* Until everything has run. Fails with what failed in it. */
INVAR_API int32_t invar_api_device_wait(invar_api_device *device);

/* The numerics revision of an op: it rises when a bit of its results may change. */
INVAR_API int32_t invar_api_op_revision(const char *op);

/* 1 where the op writes to the argument of that name, also to its scales; 0: it does not. */
INVAR_API int32_t invar_api_op_writes(const char *op, const char *argument);

/* ---- writing a ledger ------------------------------------------------------------------------ */

typedef struct invar_api_ledger invar_api_ledger;

#define INVAR_API_READ 0
#define INVAR_API_WRITE 1  /* a file that is there; one writer at a time */
#define INVAR_API_CREATE 2 /* the same, and makes it where it is not there */

/* `writer` names this program to a second one; NULL: "a process". */
INVAR_API int32_t invar_api_ledger_open(invar_api_ledger **out, const char *path, int32_t mode,
                                        const char *writer);
/* NULL is allowed. */
INVAR_API void invar_api_ledger_close(invar_api_ledger *ledger);

typedef struct invar_api_pair {
    const char *key;
    const char *value;
} invar_api_pair;

typedef struct invar_api_fact {
    const char *scope; /* "build", "python", ... */
    const char *key;
    const char *value;
} invar_api_fact;

/*
 * A new run. `identity` has what may change its bits. What is known of the host is added to the
 * facts; of the program only the caller knows: build.binary, the hash of its code.
 */
INVAR_API int32_t invar_api_ledger_begin(invar_api_ledger *ledger, const char *name,
                                         const char *kind, const invar_api_pair *identity,
                                         int64_t n_identity, const invar_api_fact *facts,
                                         int64_t n_facts);

/* The only run goes on after a checkpoint that contains `after_step` (-1: none) and its chain. */
INVAR_API int32_t invar_api_ledger_resume(invar_api_ledger *ledger, int64_t after_step,
                                          const uint8_t *chain, const invar_api_fact *facts,
                                          int64_t n_facts);

/* A tensor that is hashed at every step. */
typedef struct invar_api_point {
    const char *name;     /* unique */
    const char *phase;    /* "optimizer" */
    const char *op;       /* "step" */
    const char *kind;     /* "param" */
    const char *dtype;    /* "f32" */
    const int64_t *shape; /* (dims) */
    int64_t dims;         /* at most 8 */
    int64_t layer;        /* -1: of no layer */
    int64_t level;        /* 0: part of the root; above: beside it */
} invar_api_point;

/* The points of the following steps, in order of execution. */
INVAR_API int32_t invar_api_ledger_define(invar_api_ledger *ledger, const invar_api_point *points,
                                          int64_t count);

typedef struct invar_api_number {
    const char *name;
    double value;
} invar_api_number;

typedef struct invar_api_step {
    int64_t step;                    /* the one after the last */
    const uint8_t *digests;          /* (points, 16) */
    const uint8_t *batch;            /* (16) of what it was trained on; NULL: not known */
    const invar_api_number *metrics; /* in the content of the run */
    int64_t n_metrics;
    const invar_api_number *gauges; /* outside of it: speeds, memory */
    int64_t n_gauges;
    int64_t start_ns, duration_ns; /* Unix time; a duration of 0: not known */
} invar_api_step;

INVAR_API int32_t invar_api_ledger_append(invar_api_ledger *ledger, const invar_api_step *step);

/* The last step of this writer and the chain there; -1 and zeros before the first. */
INVAR_API int32_t invar_api_ledger_chain(int64_t *step_out, uint8_t *chain_out,
                                         const invar_api_ledger *ledger);

/* An event; `level` is debug, info, warning or error; `data` is JSON, NULL: none. */
INVAR_API int32_t invar_api_ledger_note(invar_api_ledger *ledger, const char *level,
                                        const char *kind, const char *message, const char *data);

/* Results of one data set at the last step. */
INVAR_API int32_t invar_api_ledger_evaluate(invar_api_ledger *ledger, const char *dataset,
                                            const invar_api_number *results, int64_t count);

/* The end of the run, durable. */
INVAR_API int32_t invar_api_ledger_finish(invar_api_ledger *ledger, int64_t exit_code,
                                          const char *reason);

/* ---- reading a ledger ------------------------------------------------------------------------ */

/* The number of the run that has this number, name or uuid; NULL: of the only run. */
INVAR_API int32_t invar_api_ledger_find(int64_t *run_out, invar_api_ledger *ledger,
                                        const char *which);

/* The hash of the run's bits. */
INVAR_API int32_t invar_api_ledger_content(uint8_t *out, invar_api_ledger *ledger, int64_t run);

#define INVAR_API_NULL 0
#define INVAR_API_INT 1
#define INVAR_API_REAL 2
#define INVAR_API_TEXT 3
#define INVAR_API_BLOB 4

typedef struct invar_api_value {
    int32_t type; /* INVAR_API_NULL to INVAR_API_BLOB */
    int64_t integer;
    double real;
    const void *data; /* of a text or a blob */
    uint64_t bytes;
} invar_api_value;

/* Called once before the rows with `values` NULL, then once a row; not 0: no more rows. */
typedef int32_t (*invar_api_row)(void *payload, const char *const *columns,
                                 const invar_api_value *values, int32_t count);

/* One statement that only reads, whatever the text. `limit_ms` of run time; 0: none. */
INVAR_API int32_t invar_api_ledger_select(invar_api_ledger *ledger, const char *sql,
                                          int64_t limit_ms, invar_api_row row, void *payload);

typedef struct invar_api_verify_result {
    int64_t runs, entries, rows, steps; /* how much was checked */
    int64_t bad;                        /* findings; 0: clean */
    char first[512];                    /* the first one */
} invar_api_verify_result;

/* Recomputes every hash. Damage is a finding, not a failure. */
INVAR_API int32_t invar_api_ledger_verify(invar_api_verify_result *out, invar_api_ledger *ledger);

/* The line that pins the run as it is now, for invar_api_free. A writer also stores it. */
INVAR_API int32_t invar_api_ledger_seal(char **out, invar_api_ledger *ledger, int64_t run);

/* Whether a run still is what the line says: the status MISMATCH when not. */
INVAR_API int32_t invar_api_ledger_seal_check(invar_api_ledger *ledger, const char *line);

/* Where two runs diverge: what `invar diff --json` prints, for invar_api_free. */
INVAR_API int32_t invar_api_ledger_diff(char **json_out, invar_api_ledger *a, int64_t run_a,
                                        invar_api_ledger *b, int64_t run_b);

/*
 * The run as one HTML page. A file that is there is replaced where it is such a page or empty. Kept
 * samples that are damaged are left out: the page is written, and the call fails.
 */
INVAR_API int32_t invar_api_ledger_report(invar_api_ledger *ledger, int64_t run, const char *path);

/* ---- files of the engine --------------------------------------------------------------------- */

/*
 * A rollout file (docs/formats.md), checked as the engine checks what it trains from: *out (bytes)
 * is what the engine writes for it, for invar_api_free, with numbers in one notation and members in
 * one order. The status CORRUPT says file, line and member.
 */
INVAR_API int32_t invar_api_rollout_read(char **out, uint64_t *bytes_out, const char *path);

/* The same of the lines of such a file in memory, which messages call "rollout:LINE". */
INVAR_API int32_t invar_api_rollout_format(char **out, uint64_t *bytes_out, const void *lines,
                                           uint64_t bytes);

/*
 * Writes that into a file, whole or not at all, and makes its folder. Only an empty file or another
 * rollout file is replaced.
 */
INVAR_API int32_t invar_api_rollout_write(const char *path, const void *lines, uint64_t bytes);

/*
 * Unpacks a pack into `folder`, which is there and empty, and verifies every member. The folder
 * then has what manifest.json lists, and nothing else; after a failure it may have a part.
 */
INVAR_API int32_t invar_api_pack_unpack(const char *path, const char *folder);

#ifdef __cplusplus
}
#endif
#endif
