/*
 * ledger.h - public interface of libinvar_ledger: what every step of a training run computed,
 * recorded in one SQLite file.
 *
 * A ledger holds one run, or several after an import. Each call that records something is one
 * transaction and adds one entry: a run begins, a step is done, a checkpoint is announced. Only
 * invar_ledger_define, whose points belong to no run, adds none. A resumed run gets a new
 * segment. Steps that are executed again are recorded again and can be compared.
 *
 *     invar_ledger_open(&ledger, "runs/a/ledger.db", &(invar_ledger_options){.create = true});
 *     invar_ledger_begin(ledger, &run);             or invar_ledger_resume
 *     invar_ledger_define(ledger, points, n);
 *     invar_ledger_append(ledger, &step);           once per step
 *     invar_ledger_finish(ledger, 0, "done");
 *     invar_ledger_close(ledger);
 *
 * Durability: when append has returned, the step survives the death of the process. When
 * checkpoint_intent, checkpoint_complete or finish has returned, everything recorded so far
 * survives the loss of power. A call that writes and fails has recorded nothing and may be
 * repeated. docs/ledger.md has the details.
 *
 * Every call returns INVAR_OK or the status of a failure, whose message invar_error_last returns
 * (base/status.h). Outputs are undefined after a failure unless a comment says otherwise.
 *
 * A ledger is used by one thread at a time. Strings and arrays passed to a call are read during the
 * call only. Strings are UTF-8. Names, keys and kinds have 1 to INVAR_LEDGER_NAME_BYTES bytes
 * without control characters; anything else is rejected with INVAR_E_INVALID.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_LEDGER_LEDGER_H
#define INVAR_LEDGER_LEDGER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/hash.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_LEDGER_VERSION 5      /* schema version that is written; newer ones cannot be read */
#define INVAR_LEDGER_NAME_BYTES 255 /* maximum length of a name, key or kind, without the NUL */
#define INVAR_LEDGER_UUID_SIZE 33   /* 32 hexadecimal digits and the terminating NUL */

/* ---- opening --------------------------------------------------------------------------------- */

typedef struct invar_ledger invar_ledger;

/* How to open a ledger. A zeroed struct opens an existing ledger for reading. */
typedef struct invar_ledger_options {
    bool write;         /* open as the only writer; an older schema is upgraded in place */
    bool create;        /* implies write; creates the file if it does not exist */
    const char *writer; /* name of this program, shown to a second writer; NULL means "a process" */
} invar_ledger_options;

/*
 * Opens the ledger `path`. `options` may be NULL, which opens it for reading. The caller closes
 * *out with invar_ledger_close.
 *
 * INVAR_E_NOTFOUND     the file does not exist, and `create` is not set
 * INVAR_E_BUSY         another process or handle is the writer; the message names it
 * INVAR_E_CORRUPT      the file is not a ledger, is damaged, or was never completed
 * INVAR_E_UNSUPPORTED  the schema is newer than INVAR_LEDGER_VERSION; the file to write has another
 *                      name (hard link), or is on a network file system; the file to read is on
 *                      one and has a WAL
 * INVAR_E_INVALID      the path is empty or too long, or names a folder or a device
 * INVAR_E_IO           the file or its folder cannot be read or written
 */
invar_status invar_ledger_open(invar_ledger **out, const char *path,
                               const invar_ledger_options *options) INVAR_MUST_USE;

/*
 * Closes the ledger and releases the writer's lock. `ledger` may be NULL. A segment that was not
 * ended with invar_ledger_finish counts as killed.
 */
void invar_ledger_close(invar_ledger *ledger);

#define INVAR_LEDGER_WRITER_SIZE 384 /* bytes of a writer's description, with the NUL */

/*
 * Checks whether a ledger can be created or written at `path`, so that a program can fail before
 * long work. Creates nothing. `home` is the run folder: a ledger directly in it passes even if the
 * folder does not exist yet. Fails with a status of invar_ledger_open, except INVAR_E_BUSY: the
 * lock is not checked.
 */
invar_status invar_ledger_check_output(const char *path, const char *home) INVAR_MUST_USE;

/*
 * Writes a description of the process that is writing the ledger `path` to `out`, such as
 * "pid 7 on node3 since 2026-...: train". `out` is empty if no process is. Returns INVAR_E_IO if
 * the lock file cannot be opened.
 */
invar_status invar_ledger_writer(char out[INVAR_LEDGER_WRITER_SIZE],
                                 const char *path) INVAR_MUST_USE;

/*
 * Like invar_ledger_writer, but also describes a writer that has ended: the last one. `out` is
 * empty if that is unknown, as for a copy without its lock file.
 */
invar_status invar_ledger_last_writer(char out[INVAR_LEDGER_WRITER_SIZE],
                                      const char *path) INVAR_MUST_USE;

/* ---- names ----------------------------------------------------------------------------------- */

/* The key of the identity whose value is the hash of the run's initial weights, if it has one. */
#define INVAR_LEDGER_WEIGHTS "weights hash"

/*
 * SQL expression: the metric name of the evaluation result `e`, whose series is `n`. It is
 * eval/DATASET/NAME, or NAME alone if NAME begins with eval/DATASET already.
 */
#define INVAR_LEDGER_EVALUATION(e, n)                                                              \
    "iif(substr(" n ".name, 1, length(" e ".dataset) + 5) = 'eval/' || " e ".dataset, " n          \
    ".name, 'eval/' || " e ".dataset || '/' || " n ".name)"

/* The scope of the facts that describe the model that a run loaded. */
#define INVAR_LEDGER_MODEL_SCOPE "model"

/*
 * SQL statement: the model of run number :run as one row with the columns family, layers,
 * hidden_size, parameters and weights (hash of the initial weights). A column is NULL if the ledger
 * does not prove it: the keys of a recipe describe the model only if no folder (hf-checkpoint)
 * does, and ledgers of version 0.1.0 do not record what was in the folder.
 */
extern const char invar_ledger_model_sql[];

/* ---- beginning a run ------------------------------------------------------------------------- */

typedef struct invar_ledger_pair {
    const char *key;
    const char *value;
} invar_ledger_pair;

/* A recorded key and value about build, host or recipe. Outside the content hash. */
typedef struct invar_ledger_fact {
    const char *scope; /* group of the key: "gpu", "free", "env", ... */
    const char *key;
    const char *value; /* text of any length */
} invar_ledger_fact;

/*
 * A large fact, such as a diff. The data become a row of the table `object`, stored once per run,
 * and a fact whose value is the hash of the data in hexadecimal.
 */
typedef struct invar_ledger_object {
    const char *scope;
    const char *key;  /* "diff", for example */
    const char *kind; /* media type, "text/x-diff" for example */
    const void *data;
    size_t bytes;
} invar_ledger_object;

/*
 * Facts about one life of the process: its build, host and environment. A fact of the caller
 * replaces an automatic one with the same scope and key.
 */
typedef struct invar_ledger_provenance {
    const invar_ledger_fact *facts; /* (n_facts) */
    size_t n_facts;
    const invar_ledger_object *objects; /* (n_objects) */
    size_t n_objects;
    const char *build;  /* path of the file that the build wrote; NULL for the running program's
                           own, PROGRAM.build; empty if there is none: facts of build and program
                           are then not gathered */
    bool no_auto_facts; /* gather no facts about program, build, host and GPUs automatically */
} invar_ledger_provenance;

/* Description of a new run, for invar_ledger_begin. */
typedef struct invar_ledger_run {
    const char *name;
    const char *kind;                  /* train eval ci ab bisect replay */
    const invar_ledger_pair *identity; /* (n_identity) keys that may change bits, and their values;
                                          in any order, keys unique */
    size_t n_identity;
    const char *parent; /* uuid of the run that this one starts from; NULL if there is none */
    int64_t fork_step;  /* last step of the parent that this run builds on; ignored without one */
    const invar_digest *fork_chain; /* chain of the parent at fork_step: steps and chain continue
                                       from there. NULL if they start from scratch at step 0 */
    invar_ledger_provenance circumstances; /* facts about the process that begins the run */
} invar_ledger_run;

/*
 * *out = the hash of an identity as the ledger stores it. It is equal for runs with equal keys and
 * values, whatever their order.
 */
invar_status invar_ledger_identity(invar_digest *out, const invar_ledger_pair *identity,
                                   size_t count) INVAR_MUST_USE;

/*
 * Begins a new run with segment 0 in a ledger that is open for writing. The next step is 0, or
 * fork_step + 1 if fork_chain is given. Define the points before the first step.
 */
invar_status invar_ledger_begin(invar_ledger *ledger, const invar_ledger_run *run) INVAR_MUST_USE;

/*
 * Begins a new segment of an existing run, which continues from a checkpoint. Define the points
 * before the first step.
 *
 * uuid           the run, as for invar_ledger_find; NULL for the only run
 * after_step     last step in the checkpoint, so the next one is after_step + 1; -1 to start over
 * chain          chain recorded in the checkpoint; ignored if after_step is -1
 * circumstances  facts about this process; may be NULL
 *
 * INVAR_E_NOTFOUND  the ledger does not hold the run
 * INVAR_E_STATE     the run has no step `after_step`, or the ledger is open for reading only
 * INVAR_E_MISMATCH  the ledger has another chain for that step
 */
invar_status invar_ledger_resume(invar_ledger *ledger, const char *uuid, int64_t after_step,
                                 const invar_digest *chain,
                                 const invar_ledger_provenance *provenance) INVAR_MUST_USE;

/* ---- points ---------------------------------------------------------------------------------- */

/* A named tensor of the computation whose digest is recorded at every step. */
typedef struct invar_ledger_point {
    const char *name;     /* "layer.7.attn.wq.grad", for example: unique, stable across versions */
    const char *phase;    /* rollout forward backward optimizer ... */
    int64_t layer;        /* index of the layer; -1 if the point belongs to none */
    const char *op;       /* op that computes the tensor */
    const char *kind;     /* act grad param opt logits logp data */
    int64_t level;        /* 0 if the digest is part of the root of a step; above 0 for diagnosis,
                              outside root and chain */
    const char *dtype;    /* "bf16" */
    const int64_t *shape; /* (dims) elements per dimension */
    size_t dims;          /* at most 8 */
    int64_t shards;       /* number of logical shards of the tree hash, at least 1 */
    bool replicated;      /* every rank must hold the same values */
    const int64_t
        *inputs; /* (n_inputs) indices of earlier points that the tensor is computed from */
    size_t n_inputs;
} invar_ledger_point;

/*
 * Sets the manifest: the points of the following steps, in order of execution. Required after begin
 * and resume, before the first step; may be called again between steps. Returns INVAR_E_STATE if no
 * run has begun or the segment is finished.
 */
invar_status invar_ledger_define(invar_ledger *ledger, const invar_ledger_point *points,
                                 size_t count) INVAR_MUST_USE;

/* ---- a step ---------------------------------------------------------------------------------- */

typedef struct invar_ledger_metric {
    const char *name; /* "train/grad_norm" */
    double value;     /* stored as its bit pattern: NaN and -0 survive */
} invar_ledger_metric;

/* Statistics of a point's tensor on one rank. Outside the content hash. */
typedef struct invar_ledger_stat {
    int64_t rank;
    int64_t point;      /* index in the points that were defined */
    int64_t nans, infs; /* number of elements that are NaN, or infinite */
    double absmax, l2;  /* largest absolute value, Euclidean norm */
} invar_ledger_stat;

/* A sampled response: digests and numbers, not its text. */
typedef struct invar_ledger_sample {
    int64_t prompt;                        /* index of the prompt in the data set */
    invar_digest prompt_hash;              /* digest of the prompt */
    const char *rng;                       /* random coordinates that generate the sample again */
    int64_t weights_first, weights_last;   /* weight versions of the first and last token */
    invar_digest weights_hash;             /* digest of the weights of version weights_last */
    int64_t prompt_tokens, tokens;         /* tokens of the prompt, and of prompt and response */
    invar_digest token_hash;               /* digest of the tokens of prompt and response */
    invar_digest rollout_logp, train_logp; /* digests of the response's log-probs of sampling and
                                              training */
    double reward, advantage;              /* NaN if the run computes none, as in SFT */
    double logp_diff_max;       /* largest |rollout log-prob - training log-prob|; NaN, with
                                   position -1, if they were not compared */
    int64_t logp_diff_position; /* index of that token in the response; -1 if nothing differs */
    const char *finish_reason;  /* stop length abort ... */
    int64_t completion_order;   /* order of completion on its rank; outside the content hash */
} invar_ledger_sample;

/* A named component of the reward of a sample. */
typedef struct invar_ledger_reward_part {
    int64_t sample; /* index of the sample in the batch */
    const char *name;
    double value;
} invar_ledger_reward_part;

/*
 * Turns of a sample that a plug-in steers. Outside the content hash, because the replies of the
 * plug-in determine them.
 */
typedef struct invar_ledger_multi_turn {
    int64_t sample;     /* index of the sample in the batch */
    int64_t turns;      /* number of turns of the model, at least 1 */
    int64_t env_tokens; /* tokens that the plug-in inserted into the response */
} invar_ledger_multi_turn;

#define INVAR_LEDGER_KEPT_SAMPLE_BYTES (16 << 20) /* maximum size of a kept sample, expanded */

/*
 * A sample with its text, for people to read. Outside the content hash, because keeping samples
 * must not change bits.
 */
typedef struct invar_ledger_kept_sample {
    int64_t sample;   /* index of the sample in the batch */
    const void *data; /* (bytes) JSON compressed with gzip, as docs/formats.md describes it */
    size_t bytes;
} invar_ledger_kept_sample;

/* A recorded reply of a plug-in, so that a step can be replayed without the plug-in. */
typedef struct invar_ledger_plugin_reply {
    const char *plugin;   /* name of the plug-in */
    int64_t call;         /* number of the call to this plug-in in the step; unique */
    invar_digest request; /* digest of the request */
    const void *data;     /* (bytes) the reply */
    size_t bytes;
} invar_ledger_plugin_reply;

/* Wall-clock time of a phase. Outside the content hash, like all times. */
typedef struct invar_ledger_timing {
    const char *phase;
    int64_t start_ns, duration_ns; /* start as Unix time, and duration */
} invar_ledger_timing;

/*
 * Time that one of several ranks spent in a phase: either computing, or on one kind of transfer
 * including the wait for it. No nanosecond of a rank is in two rows. Outside the content hash.
 */
typedef struct invar_ledger_rank_time {
    int64_t rank;     /* number of the rank, from 0 */
    const char *host; /* name of the host that the rank ran on */
    const char *phase;
    const char *transfer;   /* kind of transfer; empty if the rank computed */
    int64_t calls;          /* number of transfers, or how often the phase began */
    int64_t duration_ns;    /* time spent computing, or transferring and waiting */
    int64_t sent, received; /* bytes sent to and received from other ranks */
} invar_ledger_rank_time;

/* Time of all calls of an op by a rank in a phase of a profiled step. Outside the content hash. */
typedef struct invar_ledger_op_time {
    int64_t rank; /* number of the rank, from 0 */
    const char *phase, *op;
    int64_t calls, duration_ns, longest_ns; /* number of calls, their total time, the longest one */
} invar_ledger_op_time;

/* A message for people, with data for programs. Outside the content hash. */
typedef struct invar_ledger_event {
    int64_t step;        /* step that the event is about; -1 if there is none. Ignored for the
                            events of invar_ledger_step, which are about that step */
    const char *level;   /* debug info warning error */
    const char *kind;    /* short fixed word that queries select by */
    const char *message; /* text for people */
    const char *data;    /* JSON; NULL if there is none */
} invar_ledger_event;

/* The digests of all points on another rank, to find ranks that no longer hold equal replicas. */
typedef struct invar_ledger_replica_digests {
    int64_t rank; /* number of the rank, from 1; the digests of rank 0 are the step's */
    const invar_digest *digests; /* (points) in the order of the definition */
} invar_ledger_replica_digests;

/* Everything that is recorded about one optimizer step. Arrays of count 0 may be NULL. */
typedef struct invar_ledger_step {
    int64_t step;                /* number of the step: the last one + 1 */
    int64_t weights_version;     /* version of the weights before the step */
    invar_digest batch, rng;     /* digests of the global batch, and of the random coordinates */
    const invar_digest *digests; /* (points) digests of rank 0, in the order of the definition */
    const invar_ledger_replica_digests *replicas;
    size_t n_replicas;
    const invar_ledger_metric *metrics; /* part of the content hash; at most 4096, names unique */
    size_t n_metrics;
    const invar_ledger_stat *stats;
    size_t n_stats;
    const invar_ledger_sample *samples; /* in the order of the batch */
    size_t n_samples;
    const invar_ledger_reward_part *parts; /* ascending by sample, then by name */
    size_t n_parts;
    const invar_ledger_multi_turn
        *multi_turn; /* samples that a plug-in steers; ascending by sample */
    size_t n_multi_turn;
    const invar_ledger_kept_sample *kept; /* ascending by sample */
    size_t n_kept;
    const invar_ledger_plugin_reply *replies;
    size_t n_replies;
    const invar_ledger_timing *timings;
    size_t n_timings;
    const invar_ledger_rank_time *work; /* times of all ranks; empty if there is only one */
    size_t n_work;
    const invar_ledger_op_time *ops; /* op times of all ranks; empty unless the step is profiled */
    size_t n_ops;
    const invar_ledger_metric *gauges; /* numbers outside the content hash, such as speed and
                                          memory; at most 4096, names unique */
    size_t n_gauges;
    const invar_ledger_event *events;
    size_t n_events;
    bool must_match; /* compare with an earlier execution of the step; see invar_ledger_append */
} invar_ledger_step;

/*
 * Records a step in one transaction, with its root, chain and content hash. invar_ledger_chain
 * returns the new chain.
 *
 * With `must_match`, a step that an earlier segment of the run executed after the same chain is
 * compared with that execution. If the roots differ, nothing is recorded, and the message names the
 * first point that differs. If the roots are equal and the content differs, the step is recorded
 * with an event "content-differs" that names the first row that differs.
 *
 * INVAR_E_STATE     no run has begun, no points are defined, the segment is finished, the ledger is
 *                   open for reading only, or the file or its lock was removed
 * INVAR_E_INVALID   a value of the step is not allowed; the message names it
 * INVAR_E_MISMATCH  an earlier execution has another root (only with `must_match`)
 */
invar_status invar_ledger_append(invar_ledger *ledger,
                                 const invar_ledger_step *step) INVAR_MUST_USE;

/*
 * Returns the number of steps that this handle has recorded with an event "content-differs".
 * *note_out is the message of the first of these events, empty if there is none; the ledger owns
 * it.
 */
int64_t invar_ledger_other_content(const char **note_out, const invar_ledger *ledger);

/*
 * Returns the last step of the writer's segment and the chain at that step: before the first step
 * those that the segment builds on, or -1 and zeros. Returns INVAR_E_STATE if no run has begun.
 */
invar_status invar_ledger_chain(int64_t *step_out, invar_digest *chain_out,
                                const invar_ledger *ledger) INVAR_MUST_USE;

/* ---- between steps --------------------------------------------------------------------------- */

/* Records an event outside a step. Returns INVAR_E_STATE if no segment is open. */
invar_status invar_ledger_log_event(invar_ledger *ledger,
                                    const invar_ledger_event *event) INVAR_MUST_USE;

/*
 * Records the results of an evaluation of the data set `dataset` after the last step, or before the
 * first. Each result has the name of its metric. They are part of the content hash of the run.
 */
invar_status invar_ledger_add_evaluation(invar_ledger *ledger, const char *dataset,
                                         const invar_ledger_metric *results,
                                         size_t count) INVAR_MUST_USE;

/* A checkpoint of the run. */
typedef struct invar_ledger_checkpoint {
    int64_t step;       /* last step that the checkpoint contains; -1 if it precedes the first */
    const char *path;   /* final path of the checkpoint */
    int64_t bytes;      /* size of the checkpoint */
    invar_digest hash;  /* digest of the checkpoint */
    invar_digest chain; /* chain that the checkpoint records for `step`; zeros for step -1 */
} invar_ledger_checkpoint;

/*
 * Record a checkpoint in two phases: call intent when the files are written and synced, rename them
 * to `path` after it has returned, and call complete when the new name is durable. So no checkpoint
 * contains a step that the ledger lost. Both calls survive the loss of power. Both return
 * INVAR_E_MISMATCH if the chain is not the ledger's at that step, INVAR_E_INVALID if the step is
 * after the last one. Complete does not check that intent was called.
 */
invar_status invar_ledger_checkpoint_intent(invar_ledger *ledger,
                                            const invar_ledger_checkpoint *made) INVAR_MUST_USE;
invar_status invar_ledger_checkpoint_complete(invar_ledger *ledger,
                                              const invar_ledger_checkpoint *made) INVAR_MUST_USE;

/*
 * Ends the segment with an exit code and a reason for people; survives the loss of power. Nothing
 * can be appended to the segment afterwards; the run can be resumed.
 */
invar_status invar_ledger_finish(invar_ledger *ledger, int64_t exit_code,
                                 const char *reason) INVAR_MUST_USE;

/* ---- reading --------------------------------------------------------------------------------- */

/* Summary of a run in a ledger. */
typedef struct invar_ledger_summary {
    int64_t run; /* number of the run in this ledger, from 1; other ledgers may use another one */
    char uuid[INVAR_LEDGER_UUID_SIZE];
    char name[INVAR_LEDGER_NAME_BYTES + 1];
    char kind[INVAR_LEDGER_NAME_BYTES + 1];
    invar_digest identity;
    int64_t created_ns; /* Unix time of the first entry */
    int64_t updated_ns; /* Unix time of the last entry */
    int64_t entries;    /* number of transactions so far */
    int64_t segments;   /* number of lives of the process, at least 1 */
    int64_t first_step,
        last_step;          /* smallest and largest recorded step; both -1 if there is none */
    invar_digest chain;     /* chain at last_step; zeros if there is no step */
    invar_digest integrity; /* chain of the last entry */
    bool finished;          /* invar_ledger_finish ended the last segment */
    int64_t exit_code;      /* exit code of the last segment; 0 unless finished */
    bool stopped;           /* finished by a signal before the planned end */
    char parent[INVAR_LEDGER_NAME_BYTES + 1]; /* uuid of the parent; empty if there is none */
    int64_t fork_step; /* last step of the parent that the run builds on; -1 if there is none */
} invar_ledger_summary;

/*
 * Calls `take` for each run in ascending order of its number. Stops at the first call that fails
 * and returns its status.
 */
invar_status invar_ledger_runs(invar_ledger *ledger,
                               invar_status (*take)(void *payload,
                                                    const invar_ledger_summary *summary),
                               void *payload) INVAR_MUST_USE;

/*
 * Finds the run whose number, name, uuid or beginning of a uuid (at least 4 digits) is `which`;
 * NULL for the only run. A number or complete uuid wins over a name, a name over the beginning of a
 * uuid. Returns INVAR_E_NOTFOUND if no run matches, INVAR_E_INVALID if several match equally well.
 */
invar_status invar_ledger_find(invar_ledger_summary *out, invar_ledger *ledger,
                               const char *which) INVAR_MUST_USE;

/* Like invar_ledger_find, for the number of a run. */
invar_status invar_ledger_find_number(invar_ledger_summary *out, invar_ledger *ledger,
                                      int64_t run) INVAR_MUST_USE;

/*
 * *out = the chain of a run at a step, as the newest segment executed it. `step` may also be the
 * step of the parent that the run continues from. Returns INVAR_E_NOTFOUND if there is no such
 * step.
 */
invar_status invar_ledger_chain_at(invar_digest *out, invar_ledger *ledger, int64_t run,
                                   int64_t step) INVAR_MUST_USE;

/*
 * *out = the content hash of a run: the digest of everything that it computed, with each step as
 * its newest segment executed it. Equal for runs that computed the same, however often they were
 * interrupted.
 */
invar_status invar_ledger_content_hash(invar_digest *out, invar_ledger *ledger,
                                       int64_t run) INVAR_MUST_USE;

/* ---- integrity ------------------------------------------------------------------------------- */

typedef struct invar_ledger_verify_result {
    int64_t runs, entries, rows, steps; /* number of each that was checked */
    int64_t pruned;                     /* number of rows that were left out of this copy */
    int64_t seals;        /* number of seals whose SHA-256 was computed again and is equal */
    int64_t seals_pruned; /* number of seals that cannot be checked, because rows were left out */
    int64_t problems;     /* number of problems; 0 if the ledger is intact */
    char first_problem[512]; /* the first problem: run, table, key of the row, what is wrong */
} invar_ledger_verify_result;

/*
 * Verifies all runs of a ledger by computing everything again: the sum of each row, each entry and
 * its chain, roots and chains of steps, content, seals, and the structure of the SQLite file.
 *
 * Damage is counted in out->problems and is not a failure of the call. Only if SQLite cannot read
 * the rest of the file, the call also returns INVAR_E_CORRUPT; *out is valid then. `progress`
 * receives the number of rows checked so far, and of all; it may be NULL.
 */
invar_status invar_ledger_verify(invar_ledger_verify_result *out, invar_ledger *ledger,
                                 void (*progress)(void *payload, int64_t done, int64_t total),
                                 void *payload) INVAR_MUST_USE;

#define INVAR_LEDGER_SEAL_SIZE 256 /* bytes of a seal, with the NUL */

/*
 * Writes a seal of the run as it is now to `out`: the line "invar-seal 1 UUID ENTRIES CONTENT
 * INTEGRITY SHA256", without a line end. Keep it elsewhere: it proves later that these entries were
 * not altered. If the ledger is open for writing, the seal is also recorded in it. Returns
 * INVAR_E_STATE if rows were left out of this copy.
 */
invar_status invar_ledger_seal(char out[INVAR_LEDGER_SEAL_SIZE], invar_ledger *ledger,
                               int64_t run) INVAR_MUST_USE;

/*
 * Checks a seal against the ledger. Entries that were added after the seal are allowed.
 *
 * INVAR_E_MISMATCH  the run is missing, lost entries, or was altered
 * INVAR_E_INVALID   the line is not a seal
 * INVAR_E_STATE     rows were left out of this copy, so the seal cannot be checked
 */
invar_status invar_ledger_seal_check(invar_ledger *ledger, const char *line) INVAR_MUST_USE;

/* ---- copies ---------------------------------------------------------------------------------- */

/*
 * Copies to `ledger` all runs of `from`, and all entries of its runs, that `ledger` does not have
 * yet. `ledger` must be open for writing. `from` is verified first. The copies have the same
 * hashes. *runs_out is the number of runs that were copied or extended.
 *
 * INVAR_E_CORRUPT   `from` is damaged; nothing was copied
 * INVAR_E_MISMATCH  a run has the same uuid in both and another history
 * INVAR_E_STATE     `ledger` is open for reading only, or is writing a run that would be extended
 *
 * Each run is one transaction: runs before the failed one stay copied.
 */
invar_status invar_ledger_import(int64_t *runs_out, invar_ledger *ledger,
                                 invar_ledger *from) INVAR_MUST_USE;

/*
 * Like invar_ledger_import, for one run and without verification. Meant for temporary ledgers that
 * are discarded after a query.
 */
invar_status invar_ledger_import_run(invar_ledger *ledger, invar_ledger *from,
                                     int64_t run) INVAR_MUST_USE;

/*
 * The steps whose detail rows a copy keeps. Detail rows are digests, statistics, samples with their
 * texts, turns and reward parts, replies, gauges, and times of phases, ranks and ops. Metrics,
 * evaluations, events, roots and chains of all steps are always kept.
 */
typedef struct invar_ledger_retention {
    int64_t last_steps;    /* number of last steps of each run to keep; -1 to keep all */
    int64_t every_n_steps; /* keep each step divisible by this number, too; 0 for no others */
} invar_ledger_retention;

/*
 * Writes a consistent copy of the ledger to the new file `path`, also while another process writes
 * the ledger. `keep` may be NULL, which keeps all rows; a copy that leaves rows out is verified
 * first. Returns INVAR_E_INVALID if the file exists; it is never overwritten.
 */
invar_status invar_ledger_backup(invar_ledger *ledger, const char *path,
                                 const invar_ledger_retention *keep) INVAR_MUST_USE;

/* ---- queries --------------------------------------------------------------------------------- */

typedef enum invar_ledger_type {
    INVAR_LEDGER_TYPE_NULL,
    INVAR_LEDGER_TYPE_INT,
    INVAR_LEDGER_TYPE_REAL,
    INVAR_LEDGER_TYPE_TEXT,
    INVAR_LEDGER_TYPE_BLOB
} invar_ledger_type;

/* A value of SQLite. */
typedef struct invar_ledger_value {
    invar_ledger_type type;
    int64_t integer;  /* value of INT */
    double real;      /* value of REAL */
    const void *data; /* (bytes) value of TEXT and BLOB; TEXT of a result also ends with a NUL */
    size_t bytes;     /* length of data, without the NUL */
} invar_ledger_value;

/* The value of a parameter of a statement. */
typedef struct invar_ledger_argument {
    const char *name; /* name of the parameter without the colon */
    invar_ledger_value value;
} invar_ledger_argument;

/*
 * Callback for the result of a statement: called once before the rows with `values` NULL, then once
 * for each row. `columns` and `values` have `count` elements and are valid during the call only. It
 * must not use the ledger. A status other than INVAR_OK ends the statement and is returned.
 */
typedef invar_status (*invar_ledger_row_fn)(void *payload, const char *const *columns,
                                            const invar_ledger_value *values, int count);

typedef struct invar_ledger_select_request {
    const char *sql;                        /* one SELECT statement */
    const invar_ledger_argument *arguments; /* (n_arguments) a value for each parameter of `sql` */
    size_t n_arguments;
    int64_t limit_ms; /* maximum run time; 0 for no limit */
    invar_ledger_row_fn row;
    void *payload;
} invar_ledger_select_request;

/*
 * Runs one SELECT statement. The text may come from an untrusted source: it cannot write, attach a
 * file, load an extension or call a pragma. The time limit is checked between SQLite's
 * instructions, so one call of a function on large values may exceed it. During the call all of
 * SQLite in this process may use 512 MiB, unless the process has set another limit.
 *
 * INVAR_E_INVALID  `sql` is not one SELECT statement, a parameter has no value, or the result has
 *                  more than 256 columns
 * INVAR_E_STATE    the time limit was reached
 * INVAR_E_NOMEM    the statement needs more memory than is allowed
 */
invar_status invar_ledger_select(invar_ledger *ledger,
                                 const invar_ledger_select_request *request) INVAR_MUST_USE;

/*
 * Callback for a recorded reply, which is valid during the call only. It must not use the ledger. A
 * status other than INVAR_OK ends invar_ledger_replies, which returns it.
 */
typedef invar_status (*invar_ledger_take_reply)(void *payload,
                                                const invar_ledger_plugin_reply *reply);

/*
 * Calls `take` for each reply of a step, as the newest segment recorded it, in the order of plug-in
 * and call. *found_out is false if the run has no such step. Returns INVAR_E_CORRUPT if a row is
 * damaged; `take` never receives such a row.
 */
invar_status invar_ledger_replies(bool *found_out, invar_ledger *ledger, int64_t run, int64_t step,
                                  invar_ledger_take_reply take, void *payload) INVAR_MUST_USE;

#define INVAR_LEDGER_QUERY_PARAMS 8 /* maximum number of parameters of a named query */
#define INVAR_LEDGER_QUERY_WORD 48  /* bytes of a name or default value, with the NUL */
#define INVAR_LEDGER_QUERY_LINE 256 /* bytes of a line in the head of a query, with the NUL */

typedef struct invar_ledger_query_param {
    char name[INVAR_LEDGER_QUERY_WORD];
    char type;                              /* 'r' run, 'i' integer, 'n' number, 't' text */
    bool optional;                          /* `fallback` is the default value */
    char fallback[INVAR_LEDGER_QUERY_WORD]; /* default value as a user would type it */
} invar_ledger_query_param;

/* A named query that is part of the library: a file of ledger/queries. */
typedef struct invar_ledger_query {
    char name[INVAR_LEDGER_QUERY_WORD];
    char question[200]; /* the question that the query answers, in one line */
    const char *sql;    /* the statement with its head; static */
    int n_params;
    invar_ledger_query_param params[INVAR_LEDGER_QUERY_PARAMS];
} invar_ledger_query;

/* Returns the number of named queries. */
int invar_ledger_query_count(void);

/*
 * *out = the query with this index in alphabetical order, or with this name. Both return
 * INVAR_E_NOTFOUND if there is none.
 */
invar_status invar_ledger_query_at(invar_ledger_query *out, int index) INVAR_MUST_USE;
invar_status invar_ledger_query_find(invar_ledger_query *out, const char *name) INVAR_MUST_USE;

/*
 * Distinguishes a misspelled argument from a query that has no result; call it after a query that
 * returned no row. Returns INVAR_E_INVALID if an argument names a metric, data set, case,
 * experiment, level, point, prompt, sample or step that the ledger does not have; the message lists
 * those that it has. `arguments` are the parameters of the query, in its order.
 */
invar_status invar_ledger_query_check(invar_ledger *ledger, const invar_ledger_query *query,
                                      const invar_ledger_argument *arguments) INVAR_MUST_USE;

/*
 * Like invar_ledger_query_check, for the metric `name` (of `bytes` bytes) of one run. The message
 * names the option `option`.
 */
invar_status invar_ledger_metric_check(invar_ledger *ledger, const char *option, int64_t run,
                                       const char *name, size_t bytes) INVAR_MUST_USE;

/*
 * *out = whether the ledger has the rows that the query reads. If it has not, a result without rows
 * means nothing, and `why_out` is a sentence about what is missing. `why_out` is undefined
 * otherwise. `arguments` are the parameters of the query, in its order.
 */
invar_status invar_ledger_query_has_data(bool *out, char why_out[INVAR_LEDGER_QUERY_LINE],
                                         invar_ledger *ledger, const invar_ledger_query *query,
                                         const invar_ledger_argument *arguments) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
