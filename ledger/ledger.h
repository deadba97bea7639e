/*
 * ledger.h - the ledger: what every step's bits were. The public header of libinvar_ledger.
 *
 * A ledger is one SQLite file that holds one run, or several after an import. A writer appends
 * entries, each one transaction: a run begins, a step is done, a checkpoint is made. A run that is
 * resumed gets a new segment; steps executed twice are kept twice and can be compared.
 *
 *     invar_ledger_open(&ledger, "runs/a/ledger.db", &(invar_ledger_options){.create = true});
 *     invar_ledger_begin(ledger, &run);
 *     invar_ledger_define(ledger, points, n);
 *     invar_ledger_append(ledger, &step);          per step
 *     invar_ledger_finish(ledger, 0, "done");
 *     invar_ledger_close(ledger);
 *
 * Promise: when append has returned, the step survives the death of the process. What a completed
 * checkpoint_intent or finish has returned for survives the loss of power, with all steps before
 * it. A failed call has written nothing, and may be repeated. docs/ledger.md has the details.
 *
 * A ledger belongs to one thread at a time. Strings and arrays are read during the call only.
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

#define INVAR_LEDGER_VERSION 5      /* of the schema: this one is written, no newer one is read */
#define INVAR_LEDGER_NAME_BYTES 255 /* of names, keys, kinds and the like, at most */
#define INVAR_LEDGER_UUID_SIZE 33   /* 32 hexadecimal digits and the terminating NUL */

/* ---- opening --------------------------------------------------------------------------------- */

typedef struct invar_ledger invar_ledger;

/* A zeroed struct opens for reading. */
typedef struct invar_ledger_options {
    bool write;         /* become the one writer; INVAR_E_BUSY names who is it already */
    bool create;        /* implies write; makes the file when it is not there */
    const char *writer; /* how to name this writer to a second one; NULL: "a process" */
} invar_ledger_options;

/*
 * INVAR_E_NOTFOUND: no such file; INVAR_E_CORRUPT: not a ledger, or damaged; INVAR_E_UNSUPPORTED:
 * a newer schema, or a network file system; INVAR_E_IO: the system refused.
 */
invar_status invar_ledger_open(invar_ledger **out, const char *path,
                               const invar_ledger_options *options) INVAR_MUST_USE;

/* NULL is allowed. Ends the writer's hold; without finish the segment counts as killed. */
void invar_ledger_close(invar_ledger *ledger);

#define INVAR_LEDGER_WRITER_SIZE 384

/*
 * Before long work: fails where a ledger cannot be made or written at `path`. The run's folder
 * `home` will be there by then.
 */
invar_status invar_ledger_check_output(const char *path, const char *home) INVAR_MUST_USE;

/* Who writes the ledger `path` just now, "pid 7 on node3 since 2026-...: train"; "": nobody. */
invar_status invar_ledger_writer(char out[INVAR_LEDGER_WRITER_SIZE],
                                 const char *path) INVAR_MUST_USE;

/* Who writes it, or wrote it last; "": nobody knows, as in a copy without its lock. */
invar_status invar_ledger_last_writer(char out[INVAR_LEDGER_WRITER_SIZE],
                                      const char *path) INVAR_MUST_USE;

/* ---- names ----------------------------------------------------------------------------------- */

/* The key of a run's identity that has the hash of its initial weights, where it has one. */
#define INVAR_LEDGER_WEIGHTS "weights hash"

/*
 * SQL: how a result `e` of an evaluation, whose series is `n`, is called among metrics:
 * eval/DATASET/NAME, or just NAME where that begins so already.
 */
#define INVAR_LEDGER_EVALUATION(e, n)                                                              \
    "iif(substr(" n ".name, 1, length(" e ".dataset) + 5) = 'eval/' || " e ".dataset, " n          \
    ".name, 'eval/' || " e ".dataset || '/' || " n ".name)"

/* The scope of the facts that describe the model that a run loaded. */
#define INVAR_LEDGER_MODEL_SCOPE "model"

/*
 * SQL: the model of run number :run as one row: family, layers, hidden_size, parameters, weights
 * (the hash of the initial ones). A column is NULL if the ledger does not prove it: the keys of a
 * recipe describe the model only if no folder (hf-checkpoint) does, and ledgers of version 0.1.0
 * do not record what was in the folder.
 */
extern const char invar_ledger_model_sql[];

/* ---- beginning a run ------------------------------------------------------------------------- */

typedef struct invar_ledger_pair {
    const char *key;
    const char *value;
} invar_ledger_pair;

typedef struct invar_ledger_fact {
    const char *scope; /* "gpu", "free", "env", ... */
    const char *key;
    const char *value;
} invar_ledger_fact;

/* A fact too large for a line; it becomes an object, and a fact whose value is its hash. */
typedef struct invar_ledger_object {
    const char *scope;
    const char *key;  /* "diff" */
    const char *kind; /* "text/x-diff" */
    const void *data;
    size_t bytes;
} invar_ledger_object;

/* The circumstances of one life of the process. */
typedef struct invar_ledger_provenance {
    const invar_ledger_fact *facts; /* (n_facts) */
    size_t n_facts;
    const invar_ledger_object *objects; /* (n_objects) */
    size_t n_objects;
    const char *build;  /* file that the build wrote; NULL: the program's own, "PROGRAM.build"; "":
                          none, the caller's facts say what the program is */
    bool no_auto_facts; /* do not look at program, build and host by itself */
} invar_ledger_provenance;

typedef struct invar_ledger_run {
    const char *name;
    const char *kind;                  /* train eval ci ab bisect replay */
    const invar_ledger_pair *identity; /* (n_identity) effective semantic keys, in any order */
    size_t n_identity;
    const char *parent; /* uuid of the run it starts from; NULL: none */
    int64_t fork_step;  /* with a parent: the last of its steps that this run builds on */
    const invar_digest *fork_chain; /* and the chain there, which this run goes on with; NULL: its
                                       steps count from 0 */
    invar_ledger_provenance circumstances;
} invar_ledger_run;

/* The hash of an identity, as the ledger keeps it: equal for runs that ask for the same. */
invar_status invar_ledger_identity(invar_digest *out, const invar_ledger_pair *identity,
                                   size_t count) INVAR_MUST_USE;

/* A new run and its segment 0. The next step is 0, or, with a chain, that behind fork_step. */
invar_status invar_ledger_begin(invar_ledger *ledger, const invar_ledger_run *run) INVAR_MUST_USE;

/*
 * A new segment of the run `uuid` (NULL: the only run), after a checkpoint that contains
 * `after_step` (-1: from the start) and says that the chain was `chain` then (ignored for -1).
 * INVAR_E_MISMATCH: the ledger remembers another chain for that step. `circumstances` may be NULL.
 */
invar_status invar_ledger_resume(invar_ledger *ledger, const char *uuid, int64_t after_step,
                                 const invar_digest *chain,
                                 const invar_ledger_provenance *circumstances) INVAR_MUST_USE;

/* ---- points ---------------------------------------------------------------------------------- */

/* A place in the computation whose value is hashed at every step. */
typedef struct invar_ledger_point {
    const char *name;  /* "layer.7.attn.wq.grad": unique, stable across versions */
    const char *phase; /* rollout forward backward optimizer ... */
    int64_t layer;     /* -1: of no layer */
    const char *op;
    const char *kind;      /* act grad param opt logits logp data */
    int64_t level;         /* 0: part of the root; above: diagnosis, outside every chain */
    const char *dtype;     /* "bf16" */
    const int64_t *shape;  /* (dims) */
    size_t dims;           /* at most 8 */
    int64_t shards;        /* logical shards of the tree hash */
    bool replicated;       /* every rank must hold the same */
    const int64_t *inputs; /* (n_inputs) indices of earlier points that it is computed from */
    size_t n_inputs;
} invar_ledger_point;

/* The points of the following steps, in order of execution. */
invar_status invar_ledger_define(invar_ledger *ledger, const invar_ledger_point *points,
                                 size_t count) INVAR_MUST_USE;

/* ---- a step ---------------------------------------------------------------------------------- */

typedef struct invar_ledger_metric {
    const char *name; /* "train/grad_norm" */
    double value;     /* any bits: NaN and -0 keep theirs */
} invar_ledger_metric;

typedef struct invar_ledger_stat {
    int64_t rank;
    int64_t point; /* index in the definition */
    int64_t nans, infs;
    double absmax, l2;
} invar_ledger_stat;

typedef struct invar_ledger_sample {
    int64_t prompt; /* its number in the data set */
    invar_digest prompt_hash;
    const char *rng; /* coordinates that generate it again */
    int64_t weights_first, weights_last;
    invar_digest weights_hash;
    int64_t prompt_tokens, tokens;
    invar_digest token_hash;
    invar_digest rollout_logp, train_logp;
    double reward, advantage;
    /* largest |rollout log-prob - training log-prob|; NaN without a place: not compared */
    double logp_diff_max;
    int64_t logp_diff_position; /* position of that token; -1: none */
    const char *finish_reason;  /* stop length abort ... */
    int64_t completion_order;   /* order of completion on its rank, outside the content hash */
} invar_ledger_sample;

/* A named part of the reward of a sample. */
typedef struct invar_ledger_reward_part {
    int64_t sample; /* its index in the batch */
    const char *name;
    double value;
} invar_ledger_reward_part;

/* A sample that a plug-in led; outside the content hash, as it follows from the replies. */
typedef struct invar_ledger_multi_turn {
    int64_t sample;     /* its index in the batch */
    int64_t turns;      /* at least 1 */
    int64_t env_tokens; /* tokens that the plug-in gave */
} invar_ledger_multi_turn;

/* A sample with its text, for people; outside the content hash, as keeping it changes no bit. */
#define INVAR_LEDGER_KEPT_SAMPLE_BYTES (16 << 20) /* of one, expanded, at most */
typedef struct invar_ledger_kept_sample {
    int64_t sample;   /* its index in the batch */
    const void *data; /* JSON in gzip: docs/formats.md */
    size_t bytes;
} invar_ledger_kept_sample;

typedef struct invar_ledger_plugin_reply {
    const char *plugin;
    int64_t call;         /* of this plug-in in this step */
    invar_digest request; /* hash of what it was asked */
    const void *data;
    size_t bytes;
} invar_ledger_plugin_reply;

typedef struct invar_ledger_timing {
    const char *phase;
    int64_t start_ns, duration_ns; /* Unix time; never part of a result */
} invar_ledger_timing;

/*
 * What one of several ranks did in a phase: it computed, or it moved something and waited for that.
 * Every nanosecond of a rank is in one row of its own; never part of a result.
 */
typedef struct invar_ledger_rank_time {
    int64_t rank;     /* from 0 */
    const char *host; /* of the rank */
    const char *phase;
    const char *transfer;   /* what was moved; "": it computed */
    int64_t calls;          /* moves, or how often the phase began */
    int64_t duration_ns;    /* waited or computed */
    int64_t sent, received; /* bytes, to and from other ranks */
} invar_ledger_rank_time;

/* All calls of an op by a rank in a phase, where ops were measured; never part of a result. */
typedef struct invar_ledger_op_time {
    int64_t rank; /* from 0 */
    const char *phase, *op;
    int64_t calls, duration_ns, longest_ns;
} invar_ledger_op_time;

typedef struct invar_ledger_event {
    int64_t step;      /* -1: at no step; ignored inside a step */
    const char *level; /* debug info warning error */
    const char *kind;
    const char *message;
    const char *data; /* JSON; NULL: none */
} invar_ledger_event;

/* The digests of one rank's replicas of all points, for finding ranks that have drifted apart. */
typedef struct invar_ledger_replica_digests {
    int64_t rank;                /* from 1 */
    const invar_digest *digests; /* (points) */
} invar_ledger_replica_digests;

typedef struct invar_ledger_step {
    int64_t step;            /* the one after the last; anything else is refused */
    int64_t weights_version; /* version of the weights before the step */
    invar_digest batch, rng;
    const invar_digest *digests; /* (points) as defined */
    const invar_ledger_replica_digests *replicas;
    size_t n_replicas;
    const invar_ledger_metric *metrics; /* at most 4096, names unique */
    size_t n_metrics;
    const invar_ledger_stat *stats;
    size_t n_stats;
    const invar_ledger_sample *samples; /* in the order of the batch */
    size_t n_samples;
    const invar_ledger_reward_part *parts; /* by sample, then by name */
    size_t n_parts;
    const invar_ledger_multi_turn *led; /* by sample */
    size_t n_led;
    const invar_ledger_kept_sample *kept; /* by sample */
    size_t n_kept;
    const invar_ledger_plugin_reply *replies;
    size_t n_replies;
    const invar_ledger_timing *timings;
    size_t n_timings;
    const invar_ledger_rank_time *work; /* of all ranks, where there are several */
    size_t n_work;
    const invar_ledger_op_time *ops; /* of all ranks, where they were measured */
    size_t n_ops;
    const invar_ledger_metric *gauges; /* volatile: speeds, memory */
    size_t n_gauges;
    const invar_ledger_event *events;
    size_t n_events;
    bool must_match; /* refuse other bits than an earlier segment recorded for the same step */
} invar_ledger_step;

/*
 * One transaction. Computes root and chain; invar_ledger_chain tells them. With `must_match`, a
 * step that an earlier segment has executed after the same chain is compared with that execution.
 * If the root differs, nothing is written, and INVAR_E_MISMATCH names the first point that differs.
 * If only the content differs, an event "content-differs" names the first row that differs.
 */
invar_status invar_ledger_append(invar_ledger *ledger,
                                 const invar_ledger_step *step) INVAR_MUST_USE;

/*
 * Returns the number of steps that this writer has recorded with an event "content-differs".
 * *note_out is the message of the first of these events, or "", and belongs to the ledger.
 */
int64_t invar_ledger_other_content(const char **note_out, const invar_ledger *ledger);

/* The last step of the writer's segment and the chain there; -1 and zeros before the first. */
invar_status invar_ledger_chain(int64_t *step_out, invar_digest *chain_out,
                                const invar_ledger *ledger) INVAR_MUST_USE;

/* ---- beside steps ---------------------------------------------------------------------------- */

invar_status invar_ledger_log_event(invar_ledger *ledger,
                                    const invar_ledger_event *event) INVAR_MUST_USE;

/* Results of one data set at the last step (-1: before the first), each under its metric's name. */
invar_status invar_ledger_add_evaluation(invar_ledger *ledger, const char *dataset,
                                         const invar_ledger_metric *results,
                                         size_t count) INVAR_MUST_USE;

typedef struct invar_ledger_checkpoint {
    int64_t step; /* the last one that it contains */
    const char *path;
    int64_t bytes;
    invar_digest hash;
    invar_digest chain; /* as the file has it; INVAR_E_MISMATCH when the ledger has another */
} invar_ledger_checkpoint;

/*
 * Call intent when the shards are written and synced, rename them only after it returned: every
 * step in the checkpoint is then durable. Call complete when the new name is durable.
 */
invar_status invar_ledger_checkpoint_intent(invar_ledger *ledger,
                                            const invar_ledger_checkpoint *made) INVAR_MUST_USE;
invar_status invar_ledger_checkpoint_complete(invar_ledger *ledger,
                                              const invar_ledger_checkpoint *made) INVAR_MUST_USE;

/* The end of the segment, durable. Nothing can be appended to it afterwards. */
invar_status invar_ledger_finish(invar_ledger *ledger, int64_t exit_code,
                                 const char *reason) INVAR_MUST_USE;

/* ---- reading --------------------------------------------------------------------------------- */

typedef struct invar_ledger_summary {
    int64_t run; /* its number in this ledger */
    char uuid[INVAR_LEDGER_UUID_SIZE];
    char name[INVAR_LEDGER_NAME_BYTES + 1];
    char kind[INVAR_LEDGER_NAME_BYTES + 1];
    invar_digest identity;
    int64_t created_ns;
    int64_t updated_ns; /* of the last entry */
    int64_t entries;    /* transactions so far */
    int64_t segments;
    int64_t first_step, last_step;            /* -1, -1: none */
    invar_digest chain;                       /* at last_step; zeros: none */
    invar_digest integrity;                   /* chain of the last entry */
    bool finished;                            /* the last segment ended in order */
    int64_t exit_code;                        /* when finished */
    bool stopped;                             /* finished, by a signal and before its time */
    char parent[INVAR_LEDGER_NAME_BYTES + 1]; /* uuid of the run that it starts from; "": none */
    int64_t fork_step;                        /* and after which of its steps; -1: none */
} invar_ledger_summary;

/* Calls `take` for each run in order of its number; stops when it fails, and returns that. */
invar_status invar_ledger_runs(invar_ledger *ledger,
                               invar_status (*take)(void *payload,
                                                    const invar_ledger_summary *summary),
                               void *payload) INVAR_MUST_USE;

/* The run whose number, name or uuid (4 digits or more of it) is `which`; NULL: the only run. */
invar_status invar_ledger_find(invar_ledger_summary *out, invar_ledger *ledger,
                               const char *which) INVAR_MUST_USE;
invar_status invar_ledger_find_number(invar_ledger_summary *out, invar_ledger *ledger,
                                      int64_t run) INVAR_MUST_USE;

/* The chain of the timeline at a step, or at that of its parent which the run goes on from. */
invar_status invar_ledger_chain_at(invar_digest *out, invar_ledger *ledger, int64_t run,
                                   int64_t step) INVAR_MUST_USE;

/* The hash of the run's bits: equal for runs that computed the same, however often interrupted. */
invar_status invar_ledger_content_hash(invar_digest *out, invar_ledger *ledger,
                                       int64_t run) INVAR_MUST_USE;

/* ---- integrity ------------------------------------------------------------------------------- */

typedef struct invar_ledger_verify_result {
    int64_t runs, entries, rows, steps; /* how much was checked */
    int64_t pruned;                     /* rows that this copy was made without */
    int64_t seals;                      /* whose SHA-256 was computed again and is equal */
    int64_t seals_pruned;               /* that cannot be, because rows were left out */
    int64_t problems;                   /* findings; 0: clean */
    char first_problem[512];            /* the first: run, table, key of the row, what is wrong */
} invar_ledger_verify_result;

/*
 * Recomputes everything: each row's sum, each entry and its chain, roots and chains of steps,
 * content, seals, SQLite's own structure. Damage is a finding, not a failure of the call; a file
 * that SQLite itself cannot read on is both (INVAR_E_CORRUPT). `progress` may be NULL.
 */
invar_status invar_ledger_verify(invar_ledger_verify_result *out, invar_ledger *ledger,
                                 void (*progress)(void *payload, int64_t done, int64_t total),
                                 void *payload) INVAR_MUST_USE;

#define INVAR_LEDGER_SEAL_SIZE 256

/*
 * Pins the run as it is now: one line "invar-seal 1 UUID ENTRIES CONTENT INTEGRITY SHA256". With a
 * writer the seal is also stored. check says whether a run still is what a line says:
 * INVAR_E_MISMATCH when not.
 */
invar_status invar_ledger_seal(char out[INVAR_LEDGER_SEAL_SIZE], invar_ledger *ledger,
                               int64_t run) INVAR_MUST_USE;
invar_status invar_ledger_seal_check(invar_ledger *ledger, const char *line) INVAR_MUST_USE;

/* ---- copies ---------------------------------------------------------------------------------- */

/* All runs of `from` that `ledger`, a writer, does not have yet, verified first; same hashes. */
invar_status invar_ledger_import(int64_t *runs_out, invar_ledger *ledger,
                                 invar_ledger *from) INVAR_MUST_USE;

/* One run of `from`, unverified, for a ledger that is thrown away after a question. */
invar_status invar_ledger_import_run(invar_ledger *ledger, invar_ledger *from,
                                     int64_t run) INVAR_MUST_USE;

/* What a copy leaves out: digests, stats, samples, parts of rewards, replies, timings, work and
   gauges of old steps. */
typedef struct invar_ledger_retention {
    int64_t last_steps;    /* keep the detail of this many last steps of each run; -1: of all */
    int64_t every_n_steps; /* and of every step divisible by this; 0: of none */
} invar_ledger_retention;

/* A consistent copy in a new file, also while a writer is at work. Never overwrites a file. */
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

typedef struct invar_ledger_value {
    invar_ledger_type type;
    int64_t integer;
    double real;
    const void *data; /* TEXT (also terminated by NUL) and BLOB */
    size_t bytes;
} invar_ledger_value;

/* A parameter of a query, by name without the colon. */
typedef struct invar_ledger_argument {
    const char *name;
    invar_ledger_value value;
} invar_ledger_argument;

/* Called once before the rows with `values` NULL, then once a row. */
typedef invar_status (*invar_ledger_row_fn)(void *payload, const char *const *columns,
                                            const invar_ledger_value *values, int count);

typedef struct invar_ledger_select_request {
    const char *sql; /* one statement that only reads; the rest is refused */
    const invar_ledger_argument *arguments;
    size_t n_arguments;
    int64_t limit_ms; /* of run time; 0: none */
    invar_ledger_row_fn row;
    void *payload;
} invar_ledger_select_request;

/*
 * Cannot write, attach, load extensions or call a pragma, whatever the text. Time is looked at
 * between SQLite's instructions: one call of a function on large values may go beyond the limit.
 * While it runs, all of SQLite in this process may use 1 GiB, and `row` must not use the ledger.
 */
invar_status invar_ledger_select(invar_ledger *ledger,
                                 const invar_ledger_select_request *request) INVAR_MUST_USE;

/* Names and data of the reply are valid during the call only. It must not use the ledger. */
typedef invar_status (*invar_ledger_take_reply)(void *payload,
                                                const invar_ledger_plugin_reply *reply);

/*
 * Calls `take` for the replies of a step as it counts, by plug-in and call. *found_out is false if
 * the run has no such step. Each row is checked before it is given out: returns INVAR_E_CORRUPT if
 * its values do not give its sum.
 */
invar_status invar_ledger_replies(bool *found_out, invar_ledger *ledger, int64_t run, int64_t step,
                                  invar_ledger_take_reply take, void *payload) INVAR_MUST_USE;

#define INVAR_LEDGER_QUERY_PARAMS 8
#define INVAR_LEDGER_QUERY_WORD 48
#define INVAR_LEDGER_QUERY_LINE 256

typedef struct invar_ledger_query_param {
    char name[INVAR_LEDGER_QUERY_WORD];
    char type;                              /* 'r' run, 'i' integer, 'n' number, 't' text */
    bool optional;                          /* there is a fallback */
    char fallback[INVAR_LEDGER_QUERY_WORD]; /* as a user would type it */
} invar_ledger_query_param;

/* A question that comes with the ledger: a file of ledger/queries. */
typedef struct invar_ledger_query {
    char name[INVAR_LEDGER_QUERY_WORD];
    char question[200]; /* one line */
    const char *sql;
    int n_params;
    invar_ledger_query_param params[INVAR_LEDGER_QUERY_PARAMS];
} invar_ledger_query;

/* How many there are, in alphabetic order; the one with this index; the one with this name. */
int invar_ledger_query_count(void);
invar_status invar_ledger_query_at(invar_ledger_query *out, int index) INVAR_MUST_USE;
invar_status invar_ledger_query_find(invar_ledger_query *out, const char *name) INVAR_MUST_USE;

/*
 * For a query that answered without a row: fails with INVAR_E_INVALID where an argument names a
 * metric, data set, case, experiment, level, point, prompt, sample or step that is not there, and
 * says what is. `arguments` are the query's parameters, in order.
 */
invar_status invar_ledger_query_check(invar_ledger *ledger, const invar_ledger_query *query,
                                      const invar_ledger_argument *arguments) INVAR_MUST_USE;

/* The same for a metric that a run must have, where the option `option` names it. */
invar_status invar_ledger_metric_check(invar_ledger *ledger, const char *option, int64_t run,
                                       const char *name, size_t bytes) INVAR_MUST_USE;

/*
 * For such a query, too: whether the ledger has what it looks at. Where it has not, no row says
 * nothing, and `why_out` says in a sentence what is missing.
 */
invar_status invar_ledger_query_has_data(bool *out, char why_out[INVAR_LEDGER_QUERY_LINE],
                                         invar_ledger *ledger, const invar_ledger_query *query,
                                         const invar_ledger_argument *arguments) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
