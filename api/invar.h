/*
 * invar.h - public C interface of libinvar: ledgers, digests, deterministic ops and files of Invar
 * for programs in other languages.
 *
 * The interface needs no other header of Invar, passes structs of numbers and pointers, and has
 * only names that begin with invar_api_. Other names that the library exports are for its modules.
 * The Python package (python/) uses nothing else.
 * INVAR_API_ABI increases when a function or a struct changes; new functions do not change it. A
 * program compares invar_api_abi() with INVAR_API_ABI before it calls any other function.
 *
 * A function that returns int32_t returns 0 or a negative status, unless its comment says
 * otherwise. invar_api_error() then returns a message of one line, and invar_api_status_name() the
 * name of the status, such as "NOTFOUND". Outputs are undefined after a failure, except that
 * objects and texts are NULL. Texts are UTF-8 and end with a NUL. Texts and arrays passed to a
 * function are read during the call only. A digest has INVAR_API_DIGEST_BYTES bytes. docs/ledger.md
 * explains ledgers.
 *
 * A ledger is used by one thread at a time, a device by any number of threads. Different objects
 * are independent.
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

/* Returns the INVAR_API_ABI with which the library was built. */
INVAR_API int32_t invar_api_abi(void);

/* Returns the version of Invar, such as "0.1.0"; static. */
INVAR_API const char *invar_api_version(void);

/*
 * Returns the message of this thread's last failure; never NULL. Valid until the next call of this
 * thread.
 */
INVAR_API const char *invar_api_error(void);

/* Returns the name of a status, such as "INVALID"; "UNKNOWN" for other numbers; static. */
INVAR_API const char *invar_api_status_name(int32_t status);

/* Frees a text that a function of this interface has returned; `text` may be NULL. */
INVAR_API void invar_api_free(void *text);

/* ---- hashes ---------------------------------------------------------------------------------- */

/* A tensor as DLPack describes it. */
typedef struct invar_api_tensor {
    void *data;           /* first element; may be NULL if the tensor is empty */
    const int64_t *shape; /* (dims) elements per dimension */
    /* (dims) elements from one index to the next; NULL for a dense tensor */
    const int64_t *strides;
    int32_t dims;  /* number of dimensions, 0 (one element) to INVAR_API_MAX_DIMS */
    int32_t code;  /* DLPack's code of the element type; ignored by hashes */
    int32_t bits;  /* bits of an element; hashes need a multiple of 8, at most 128 */
    int32_t place; /* location of the memory: INVAR_API_HOST or INVAR_API_DEVICE */
} invar_api_tensor;

#define INVAR_API_MAX_DIMS 64
#define INVAR_API_HOST 0   /* memory of the host */
#define INVAR_API_DEVICE 1 /* memory of a GPU; for ops only */

/* Writes the XXH3-128 of `data` to `out` (16 bytes), in the byte order that `xxhsum -H2` prints. */
INVAR_API int32_t invar_api_hash_bytes(uint8_t *out, const void *data, uint64_t bytes);

/*
 * Writes the tree hash of each tensor to `out` (count, 16): the hash that the engine records for a
 * tensor of one logical shard (docs/ledger.md). Elements are hashed row by row, whatever the
 * strides. `threads` is the number of threads to use, from 1 to 1024; the digests do not depend on
 * it. Returns INVALID for a tensor that is not in host memory or whose description is wrong.
 */
INVAR_API int32_t invar_api_hash_tensors(uint8_t *out, const invar_api_tensor *tensors,
                                         int64_t count, int32_t threads);

/* ---- ops ------------------------------------------------------------------------------------- */

/*
 * A device on which ops run, with its own threads and scratch memory. Calls on one device from
 * several threads run one after another.
 */
typedef struct invar_api_device invar_api_device;

/*
 * Opens a device. The caller closes *out with invar_api_device_close.
 *
 * kind      "cpu", "cuda" or "cuda:N"
 * numerics  "ieee", or "sm90", with which a CPU computes the bits of an H200
 * threads   number of CPU threads, 1 to 1024; bits do not depend on it
 *
 * CUDA needs the module invar-cuda.so of the same build beside the library, in lib/invar or in the
 * folder that the environment variable INVAR_MODULES names. Returns NODEVICE if there is no such
 * module or GPU; the message has the reason.
 */
INVAR_API int32_t invar_api_device_open(invar_api_device **out, const char *kind,
                                        const char *numerics, int32_t threads);

/* Closes a device; `device` may be NULL. No call may be running on it. */
INVAR_API void invar_api_device_close(invar_api_device *device);

#define INVAR_API_TENSOR 0
#define INVAR_API_INTEGER 1
#define INVAR_API_FLOAT 2

/*
 * An argument of an op. Its name is that of a field in kernels-deterministic/op_fields.def.
 *
 * Tensors are f32, bf16, i32 or i64 and have 1 to 4 dimensions, of which only the first may be
 * strided. Row offsets ("segments") are vectors of i64. On a GPU all memory is that of the GPU,
 * except for fields with the place HOST in op_fields.def; on a CPU all memory is that of the host.
 *
 * A quantized tensor consists of several arguments. The one with the name of the field has the
 * codes: two dimensions, and for 4-bit codes a shape that counts codes, two per byte. NAME.scale is
 * a dense tensor with one scale per scale block. The formats are:
 *
 *   fp8    e4m3 codes (DLPack's code 10) with f32 scales
 *   mxfp8  e4m3 codes with E8M0 scales (DLPack's code 14, or unsigned bytes)
 *   int4   4-bit codes (DLPack's code 0) with bf16 scales
 *
 * NAME.scale_rows (integer, default 1) is the number of rows that share scales, 128 for fp8
 * weights. NAME.scale_period (integer, default 0 for never) is the number of rows after which scale
 * blocks begin again: the rows of an expert.
 */
typedef struct invar_api_argument {
    const char *name;
    invar_api_tensor tensor; /* value of an INVAR_API_TENSOR */
    int64_t integer;         /* value of an INVAR_API_INTEGER */
    double real;             /* value of an INVAR_API_FLOAT */
    int32_t kind;            /* INVAR_API_TENSOR, INVAR_API_INTEGER or INVAR_API_FLOAT */
    int32_t reserved;        /* 0 */
} invar_api_argument;

/*
 * Runs the op `op`, such as "linear.fwd", and returns when it is complete. docs/arithmetic.md
 * specifies what each op computes, and in which order. Returns INVALID if an argument is wrong,
 * missing or unknown, before anything is written, and NOTFOUND if there is no such op.
 */
INVAR_API int32_t invar_api_call(invar_api_device *device, const char *op,
                                 const invar_api_argument *arguments, int64_t count);

/*
 * Like invar_api_call, but on a GPU the op runs asynchronously in `stream`, a cudaStream_t of the
 * caller (NULL for the default stream), after the work that the stream has. On a CPU the stream is
 * ignored, and the call returns when the op is complete.
 *
 * The memory of the arguments must stay valid until the op is complete. Calls on one device run in
 * the order of the calls, even in different streams. The stream must exist until the next call on
 * the device has returned, and must not be captured by a CUDA graph. The host cannot check indices
 * in GPU memory: an index out of range is replaced by a valid one, and a later call or
 * invar_api_device_wait fails.
 */
INVAR_API int32_t invar_api_call_in(invar_api_device *device, void *stream, const char *op,
                                    const invar_api_argument *arguments, int64_t count);

/*
 * Waits until all ops on the device are complete. Returns the failure of an op, if there was one.
 */
INVAR_API int32_t invar_api_device_wait(invar_api_device *device);

/*
 * Returns the numerics revision of an op, a positive number that increases whenever a bit of its
 * results may change, or the status NOTFOUND.
 */
INVAR_API int32_t invar_api_op_revision(const char *op);

/*
 * Returns 1 if the op writes to the argument of this name, which may be that of a tensor's scales;
 * 0 if it does not, or has no such argument; or the status NOTFOUND if there is no such op.
 */
INVAR_API int32_t invar_api_op_writes(const char *op, const char *argument);

/* ---- writing a ledger ------------------------------------------------------------------------ */

/* A ledger that is open for reading or writing. */
typedef struct invar_api_ledger invar_api_ledger;

#define INVAR_API_READ 0   /* read an existing ledger, also while another process writes it */
#define INVAR_API_WRITE 1  /* write an existing ledger as its only writer */
#define INVAR_API_CREATE 2 /* like INVAR_API_WRITE, but create the file if it does not exist */

/*
 * Opens the ledger `path`. `mode` is INVAR_API_READ, INVAR_API_WRITE or INVAR_API_CREATE. `writer`
 * is the name of this program, which is shown to a second writer; NULL means "a process". The
 * caller closes *out with invar_api_ledger_close.
 *
 * NOTFOUND     the file does not exist, and the mode is not INVAR_API_CREATE
 * BUSY         another process or handle is the writer; the message names it
 * CORRUPT      the file is not a ledger, is damaged, or was never completed
 * UNSUPPORTED  the ledger is of a newer version, or on a network file system
 * IO           the file or its folder cannot be read or written
 */
INVAR_API int32_t invar_api_ledger_open(invar_api_ledger **out, const char *path, int32_t mode,
                                        const char *writer);

/*
 * Closes a ledger; `ledger` may be NULL. A run that was not ended with invar_api_ledger_finish
 * counts as killed.
 */
INVAR_API void invar_api_ledger_close(invar_api_ledger *ledger);

typedef struct invar_api_pair {
    const char *key;
    const char *value;
} invar_api_pair;

/* A recorded key and value about build, host or program of a run. Outside the content hash. */
typedef struct invar_api_fact {
    const char *scope; /* group of the key: "build", "python", ... */
    const char *key;
    const char *value;
} invar_api_fact;

/*
 * Begins a new run.
 *
 * name      name of the run
 * kind      train, eval, ci, ab, bisect or replay
 * identity  (n_identity) keys and values that may change bits; keys unique, in any order
 * facts     (n_facts) facts about the program. Facts about the host and GPUs are added. Record the
 *           hash of the program's code as the key binary of the scope build.
 */
INVAR_API int32_t invar_api_ledger_begin(invar_api_ledger *ledger, const char *name,
                                         const char *kind, const invar_api_pair *identity,
                                         int64_t n_identity, const invar_api_fact *facts,
                                         int64_t n_facts);

/*
 * Continues the only run of the ledger in a new segment, after a checkpoint whose last step is
 * `after_step` (-1 to start over). `chain` (16 bytes) is the chain that the checkpoint has
 * recorded; it may be NULL if `after_step` is -1. Returns MISMATCH if the ledger has another chain
 * for that step, STATE if it does not have the step, INVALID if the ledger holds several runs.
 */
INVAR_API int32_t invar_api_ledger_resume(invar_api_ledger *ledger, int64_t after_step,
                                          const uint8_t *chain, const invar_api_fact *facts,
                                          int64_t n_facts);

/* A named tensor whose digest is recorded at every step. */
typedef struct invar_api_point {
    const char *name;     /* unique, and stable across versions of the program */
    const char *phase;    /* "optimizer", for example */
    const char *op;       /* op that computes the tensor: "step", for example */
    const char *kind;     /* "param", for example */
    const char *dtype;    /* "f32", for example */
    const int64_t *shape; /* (dims) elements per dimension */
    int64_t dims;         /* at most 8 */
    int64_t layer;        /* index of the layer; -1 if the point belongs to none */
    int64_t level;        /* 0 if the digest is part of the root of a step; above 0 for diagnosis,
                             outside root and chain */
} invar_api_point;

/*
 * Sets the points of the following steps, in order of execution. Required after begin and resume,
 * before the first step.
 */
INVAR_API int32_t invar_api_ledger_define(invar_api_ledger *ledger, const invar_api_point *points,
                                          int64_t count);

typedef struct invar_api_number {
    const char *name;
    double value;
} invar_api_number;

/* Everything that is recorded about an optimizer step. */
typedef struct invar_api_step {
    int64_t step;                    /* number of the step: the last one + 1 */
    const uint8_t *digests;          /* (points, 16) digests, in the order of the definition */
    const uint8_t *batch;            /* (16) digest of the global batch; NULL if unknown */
    const invar_api_number *metrics; /* (n_metrics) part of the content hash; names unique */
    int64_t n_metrics;
    const invar_api_number *gauges; /* (n_gauges) numbers outside the content hash, such as speed */
    int64_t n_gauges;
    int64_t start_ns, duration_ns; /* start as Unix time, and duration; 0 if it is unknown */
} invar_api_step;

/*
 * Records a step. When the call has returned, the step survives the death of the process. Returns
 * STATE if no run has begun or no points are defined, INVALID if a value is not allowed. A call
 * that fails has recorded nothing.
 */
INVAR_API int32_t invar_api_ledger_append(invar_api_ledger *ledger, const invar_api_step *step);

/*
 * *step_out = the last step of this writer, chain_out (16) = the chain at that step. Before the
 * first step they are those that the run was resumed after, or -1 and zeros. Returns STATE if no
 * run has begun.
 */
INVAR_API int32_t invar_api_ledger_chain(int64_t *step_out, uint8_t *chain_out,
                                         const invar_api_ledger *ledger);

/*
 * Records an event at the last step. `level` is debug, info, warning or error; `kind` is a short
 * fixed word; `data` is JSON, or NULL if there are no data.
 */
INVAR_API int32_t invar_api_ledger_note(invar_api_ledger *ledger, const char *level,
                                        const char *kind, const char *message, const char *data);

/* Records the results (count) of an evaluation of one data set at the last step. */
INVAR_API int32_t invar_api_ledger_evaluate(invar_api_ledger *ledger, const char *dataset,
                                            const invar_api_number *results, int64_t count);

/*
 * Ends the run with an exit code and a reason for people. When the call has returned, all that was
 * recorded survives the loss of power. The run can be resumed.
 */
INVAR_API int32_t invar_api_ledger_finish(invar_api_ledger *ledger, int64_t exit_code,
                                          const char *reason);

/* ---- reading a ledger ------------------------------------------------------------------------ */

/*
 * *run_out = the number of the run whose number, name, uuid or beginning of a uuid (at least 4
 * digits) is `which`; NULL for the only run. Returns NOTFOUND if no run matches, INVALID if several
 * do.
 */
INVAR_API int32_t invar_api_ledger_find(int64_t *run_out, invar_api_ledger *ledger,
                                        const char *which);

/*
 * Writes the content hash of a run to `out` (16): equal for runs that computed the same bits,
 * however often they were interrupted.
 */
INVAR_API int32_t invar_api_ledger_content(uint8_t *out, invar_api_ledger *ledger, int64_t run);

#define INVAR_API_NULL 0
#define INVAR_API_INT 1
#define INVAR_API_REAL 2
#define INVAR_API_TEXT 3
#define INVAR_API_BLOB 4

/* A value of SQLite. */
typedef struct invar_api_value {
    int32_t type;     /* INVAR_API_NULL to INVAR_API_BLOB */
    int64_t integer;  /* value of INVAR_API_INT */
    double real;      /* value of INVAR_API_REAL */
    const void *data; /* (bytes) value of INVAR_API_TEXT, followed by a NUL, or INVAR_API_BLOB */
    uint64_t bytes;
} invar_api_value;

/*
 * Callback for the result of a statement: called once before the rows with `values` NULL, then once
 * for each row. `columns` and `values` have `count` elements and are valid during the call only. It
 * must not use the ledger. Returns 0 to continue; another value ends the statement.
 */
typedef int32_t (*invar_api_row)(void *payload, const char *const *columns,
                                 const invar_api_value *values, int32_t count);

/*
 * Runs one SELECT statement without parameters. The text may come from an untrusted source: it
 * cannot write, attach a file or load an extension. `limit_ms` is the maximum run time; 0 for no
 * limit. A ledger that is open for reading also has the view sample_texts, with the texts of kept
 * samples.
 *
 * INVALID  `sql` is not one SELECT statement, or has a parameter
 * STATE    the time limit was reached, or `row` returned another value than 0
 * NOMEM    the statement needs more than 512 MiB
 */
INVAR_API int32_t invar_api_ledger_select(invar_api_ledger *ledger, const char *sql,
                                          int64_t limit_ms, invar_api_row row, void *payload);

/* The result of verifying a ledger. */
typedef struct invar_api_verify_result {
    int64_t runs, entries, rows, steps; /* number of each that was checked */
    int64_t bad;                        /* number of problems; 0 if the ledger is intact */
    char first[512];                    /* first problem, in words; empty if there are none */
} invar_api_verify_result;

/*
 * Verifies a ledger by computing every hash again. Damage is counted in out->bad and is not a
 * failure of the call. Returns CORRUPT only if the file is so damaged that SQLite cannot read the
 * rest.
 */
INVAR_API int32_t invar_api_ledger_verify(invar_api_verify_result *out, invar_api_ledger *ledger);

/*
 * *out = a seal of the run as it is now: one line, to be kept elsewhere, that proves later that the
 * run was not altered. If the ledger is open for writing, the seal is also recorded in it. The
 * caller frees *out with invar_api_free.
 */
INVAR_API int32_t invar_api_ledger_seal(char **out, invar_api_ledger *ledger, int64_t run);

/*
 * Checks a seal. Returns MISMATCH if the run is missing, lost entries or was altered since, and
 * INVALID if the line is not a seal. Entries that were added after the seal are allowed.
 */
INVAR_API int32_t invar_api_ledger_seal_check(invar_api_ledger *ledger, const char *line);

/*
 * Compares two runs. *json_out = the output of `invar diff --json`, which the caller frees with
 * invar_api_free. `a` and `b` may be the same ledger. run_a and run_b are numbers of
 * invar_api_ledger_find.
 */
INVAR_API int32_t invar_api_ledger_diff(char **json_out, invar_api_ledger *a, int64_t run_a,
                                        invar_api_ledger *b, int64_t run_b);

/*
 * Writes a report of a run to `path`, as one HTML page. An existing file is replaced only if it is
 * empty or such a page; otherwise the call returns INVALID. If kept samples are damaged, the page
 * is written without them, and the call returns CORRUPT.
 */
INVAR_API int32_t invar_api_ledger_report(invar_api_ledger *ledger, int64_t run, const char *path);

/* ---- files of the engine --------------------------------------------------------------------- */

/*
 * Reads and checks a rollout file (docs/formats.md) as the engine does before it trains from one.
 * *out (*bytes_out) is the text that the engine writes for it, with numbers in one notation and
 * members in one order; the caller frees it with invar_api_free. Returns CORRUPT, with file, line
 * and member in the message, if the file is damaged.
 */
INVAR_API int32_t invar_api_rollout_read(char **out, uint64_t *bytes_out, const char *path);

/* Like invar_api_rollout_read, for lines (bytes) in memory; messages name them "rollout:LINE". */
INVAR_API int32_t invar_api_rollout_format(char **out, uint64_t *bytes_out, const void *lines,
                                           uint64_t bytes);

/*
 * Checks lines (bytes) like invar_api_rollout_format and writes the result to a file, atomically.
 * Creates the folder if necessary. Only an empty file or another rollout file is replaced.
 */
INVAR_API int32_t invar_api_rollout_write(const char *path, const void *lines, uint64_t bytes);

/*
 * Unpacks the pack `path` into `folder`, which must exist and be empty, and verifies every member.
 * The folder then has exactly the files that manifest.json lists; after a failure it may have some
 * of them.
 */
INVAR_API int32_t invar_api_pack_unpack(const char *path, const char *folder);

#ifdef __cplusplus
}
#endif
#endif
