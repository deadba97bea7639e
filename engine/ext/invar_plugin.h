/*
 * invar_plugin.h - C interface of plug-ins: rewards, filters, prompts, losses, turns and hooks.
 *
 * Self-contained; copy it beside the plug-in's source. A shared object exports one constant:
 *
 *     const invar_plugin_table invar_plugin_v1 = {INVAR_PLUGIN_HEAD("length"), .reward = length};
 *
 *     cc -shared -fPIC -o reward.so reward.c        custom-rm-path = ./reward.so
 *
 * A function that is NULL is not offered; requiring it is an error before the run begins. Functions
 * return 0, or another value after writing a one-line reason to `error`, which ends the run. Calls
 * are never concurrent. Pointers in arguments are valid during the call only. A shared object is
 * part of the process: if it crashes or hangs, so does the run; write a program instead if that
 * must not happen (docs/plugins.md). The floating-point environment and the current folder are
 * restored after every call.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_PLUGIN_H
#define INVAR_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_PLUGIN_ABI 1
#define INVAR_PLUGIN_ERROR_SIZE 160 /* capacity of every `error`, including the terminating NUL */

#if defined(__GNUC__)
#define INVAR_PLUGIN_EXPORT __attribute__((visibility("default")))
#else
#define INVAR_PLUGIN_EXPORT
#endif

/* One response. Text is UTF-8 and NUL-terminated; the response may contain further NULs. */
typedef struct invar_plugin_sample {
    int64_t index; /* index among all samples of the run */
    int64_t group; /* equal for the samples of one prompt */
    const char *prompt;
    const char *response;
    size_t response_bytes;
    const char *label;     /* empty if absent */
    const char *metadata;  /* a JSON object */
    const char *finish;    /* "stop", "length" or "abort" */
    const int32_t *tokens; /* (n_tokens) prompt, then response */
    int64_t prompt_tokens;
    int64_t n_tokens;
    double reward; /* input of filters; 0 if not known yet */
} invar_plugin_sample;

/* Verdict of a filter on a sample. */
enum {
    INVAR_PLUGIN_KEEP = 0,
    INVAR_PLUGIN_REMOVE = 1, /* keeps its place, but does not contribute to the loss */
    INVAR_PLUGIN_DROP = 2    /* drops its whole group from the rollout */
};

/*
 * Verdict of a buffer filter on a sample, besides INVAR_PLUGIN_DROP; equal for all samples of a
 * group.
 */
enum {
    INVAR_PLUGIN_TAKE = 0, /* may join the batch if there is space, otherwise it waits */
    INVAR_PLUGIN_WAIT = 1  /* stays in the buffer (INVAR_PLUGIN_DROP removes it for good) */
};

/* Input of a buffer filter besides the samples. */
typedef struct invar_plugin_buffer {
    int64_t rollout;      /* rollout whose batch is being assembled */
    int64_t wanted;       /* number of groups in the batch */
    const int64_t *since; /* (samples) rollout that each sample was made for */
} invar_plugin_buffer;

/* Prompts that a rollout needs. */
typedef struct invar_plugin_wanted {
    int64_t rollout;
    int64_t first; /* index in the run of the first group */
    int64_t count; /* number of groups */
    int64_t lines; /* lines of prompt-data; each chosen line is from 0 to lines - 1 */
} invar_plugin_wanted;

/* Tokens of one sample's response. The engine applies the mask and reduces over tokens. */
typedef struct invar_plugin_tokens {
    int64_t sample; /* index of the sample in the step, from 0 */
    int64_t count;
    const float *logp;      /* (count) of the weights in training */
    const float *old;       /* (count) of the weights that sampled, from the training forward */
    const float *rollout;   /* (count) as sampled; NULL if unknown */
    const float *ref;       /* (count) of the reference model; NULL if there is no such model */
    const float *advantage; /* (count) advantages */
    const uint8_t *mask;    /* (count) 1 if the token contributes to the loss */
} invar_plugin_tokens;

/* A sample after one of its turns: the model has stopped and waits for an action. */
typedef struct invar_plugin_turn {
    /*
     * Sample so far: its response is what the model generated in all turns, its finish that of this
     * turn.
     */
    invar_plugin_sample sample;
    int64_t turn;     /* number of this turn, from 1 */
    int64_t turns;    /* maximum number of turns */
    const char *text; /* text that the model generated in this turn */
    size_t text_bytes;
    int64_t first; /* tokens of this turn are sample.tokens[first, n_tokens) */
    int64_t room;  /* tokens that the sample may still get, including inserted ones */
    int last;      /* 1 if the sample can only end */
} invar_plugin_turn;

/*
 * Action after a turn, zeroed before the call: text or tokens are inserted and the model continues,
 * or the sample ends. Pointers belong to the plug-in and must stay valid until its next call.
 */
typedef struct invar_plugin_next {
    int end; /* 1 if the sample ends */
    /* fields of an action that ends the sample */
    int rewarded; /* 1 if `reward` is its reward; 0 if the recipe computes it */
    double reward;
    const double *parts; /* (part_names) parts of the reward; NULL if absent */
    /* fields of an action that continues the sample */
    const char *text; /* (text_bytes) UTF-8 to insert; NULL to insert `tokens` */
    size_t text_bytes;
    const int32_t *tokens; /* (n_tokens) to insert */
    int64_t n_tokens;
    int64_t max_tokens; /* limit of the next turn; 0 for the recipe's */
    /* Strings that end the next turn, NULL-terminated array; NULL for those of the recipe. */
    const char *const *stop;
} invar_plugin_next;

enum {
    INVAR_PLUGIN_AFTER_INIT = 0,
    INVAR_PLUGIN_BEFORE_LOGPROB = 1,
    INVAR_PLUGIN_BEFORE_TRAIN_STEP = 2,
    INVAR_PLUGIN_AFTER_ROLLOUT = 3,
    INVAR_PLUGIN_AFTER_EVAL = 4
};

typedef struct invar_plugin_event {
    int hook;           /* INVAR_PLUGIN_AFTER_INIT ... INVAR_PLUGIN_AFTER_EVAL */
    int64_t step;       /* step of the run; -1 after init */
    int64_t rollout;    /* -1 after init */
    const char *run;    /* name of the run */
    const char *folder; /* folder of the run */
    /* (count) after_rollout: the batch; after_eval: samples of a set; else NULL. */
    const invar_plugin_sample *samples;
    size_t count;
    const char *set; /* after_eval: name of the evaluation set; else NULL */
} invar_plugin_event;

/* Report of a hook. Pointers belong to the plug-in and must stay valid until its next call. */
typedef struct invar_plugin_report {
    const char *const *names; /* (count) names of measured values */
    const double *values;     /* (count) finite */
    size_t count;
    double loss_factor; /* before_train_step: factor for the policy loss of the step; preset to 1 */
} invar_plugin_report;

/* Functions of a plug-in. Fields are only ever appended; `size` tells which exist. */
typedef struct invar_plugin_table {
    uint32_t abi;     /* INVAR_PLUGIN_ABI */
    uint32_t size;    /* sizeof(invar_plugin_table) */
    const char *name; /* printable, at most 64 bytes */
    /*
     * Called once before and once after all other functions; may be NULL. *self is passed to every
     * call.
     */
    int (*open)(void **self, char *error);
    void (*close)(void *self);
    /* Rewards samples independently: reward[i] of samples[i], finite. */
    int (*reward)(void *self, const invar_plugin_sample *samples, size_t count, double *reward,
                  char *error);
    /* Rewards the samples of one group together. */
    int (*group_reward)(void *self, const invar_plugin_sample *samples, size_t count,
                        double *reward, char *error);
    /* Filters samples: verdict[i] is INVAR_PLUGIN_KEEP, _REMOVE or _DROP. */
    int (*filter)(void *self, const invar_plugin_sample *samples, size_t count, uint8_t *verdict,
                  char *error);
    /*
     * Computes loss[t] of each token and dlogp[t], the derivative of their sum by logp[t]; finite.
     */
    int (*loss)(void *self, const invar_plugin_tokens *tokens, float *dlogp, float *loss,
                char *error);
    /* Notification without an answer; a failure ends the run. */
    int (*hook)(void *self, const invar_plugin_event *event, char *error);
    /* Names of reward parts, at most 32, NULL-terminated array. */
    const char *const *part_names;
    /*
     * Called right after reward or group_reward, for the same samples: part[i * names + k], finite.
     */
    int (*parts)(void *self, const invar_plugin_sample *samples, size_t count, double *part,
                 char *error);
    /* Chooses actions after turns, independently: next[i] after turns[i]. */
    int (*generate)(void *self, const invar_plugin_turn *turns, size_t count,
                    invar_plugin_next *next, char *error);
    /*
     * Called right after `hook`, if offered, with the same event; *report is preset to 0, its
     * factor to 1.
     */
    int (*report)(void *self, const invar_plugin_event *event, invar_plugin_report *report,
                  char *error);
    /* Filters waiting groups, oldest first: verdict[i] is INVAR_PLUGIN_TAKE, _WAIT or _DROP. */
    int (*buffer_filter)(void *self, const invar_plugin_buffer *buffer,
                         const invar_plugin_sample *samples, size_t count, uint8_t *verdict,
                         char *error);
    /* Chooses prompts: line[i] is the line of prompt-data, from 0, of the i-th wanted prompt. */
    int (*prompts)(void *self, const invar_plugin_wanted *wanted, int64_t *line, char *error);
} invar_plugin_table;

#define INVAR_PLUGIN_HEAD(name) INVAR_PLUGIN_ABI, (uint32_t)sizeof(invar_plugin_table), (name)

extern INVAR_PLUGIN_EXPORT const invar_plugin_table invar_plugin_v1;

#ifdef __cplusplus
}
#endif
#endif
