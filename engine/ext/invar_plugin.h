/*
 * invar_plugin.h - how a C shared object offers rewards, filters, prompts, losses, turns or hooks.
 *
 * Self-contained; copy it beside the plug-in's source. A shared object exports one constant:
 *
 *     const invar_plugin_table invar_plugin_v1 = {INVAR_PLUGIN_HEAD("length"), .reward = length};
 *
 *     cc -shared -fPIC -o reward.so reward.c        custom-rm-path = ./reward.so
 *
 * A function that is NULL is not offered; asking for it is an error before the run begins. Every
 * call returns 0, or anything else after writing one line of why into `error`: that ends the run.
 * Calls come one at a time. Pointers in arguments are valid during the call only. A shared object
 * is inside the process: if it crashes or never returns, the run dies with it; what must not be
 * able to do that is written as a program (docs/plugins.md). The floating-point environment and the
 * current folder are put back after every call.
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
#define INVAR_PLUGIN_ERROR_SIZE 160 /* room of every `error`, with the terminating NUL */

#if defined(__GNUC__)
#define INVAR_PLUGIN_EXPORT __attribute__((visibility("default")))
#else
#define INVAR_PLUGIN_EXPORT
#endif

/* One response. Text is UTF-8 and ends with NUL; the response may hold NULs before that, too. */
typedef struct invar_plugin_sample {
    int64_t index; /* of all samples of the run */
    int64_t group; /* samples of one prompt have one number */
    const char *prompt;
    const char *response;
    size_t response_bytes;
    const char *label;     /* "" when there is none */
    const char *metadata;  /* a JSON object */
    const char *finish;    /* "stop", "length" or "abort" */
    const int32_t *tokens; /* (n_tokens) prompt, then response */
    int64_t prompt_tokens;
    int64_t n_tokens;
    double reward; /* for a filter; 0 before it is known */
} invar_plugin_sample;

/* What a filter says of a sample. */
enum {
    INVAR_PLUGIN_KEEP = 0,
    INVAR_PLUGIN_REMOVE = 1, /* stays where it is, but takes no part in the loss */
    INVAR_PLUGIN_DROP = 2    /* its whole group leaves the rollout */
};

/* What a filter of the buffer says of a sample; one word for all samples of a group. */
enum {
    INVAR_PLUGIN_TAKE = 0, /* may join the batch, as long as there is room: else it waits */
    INVAR_PLUGIN_WAIT = 1  /* stays in the buffer; INVAR_PLUGIN_DROP: leaves it for good */
};

/* What it needs to know besides the samples. */
typedef struct invar_plugin_buffer {
    int64_t rollout;      /* whose batch is being made, */
    int64_t wanted;       /* of so many groups */
    const int64_t *since; /* (samples) the rollout that each sample was made for */
} invar_plugin_buffer;

/* Prompts that a rollout needs. */
typedef struct invar_plugin_wanted {
    int64_t rollout;
    int64_t first; /* number in the run of the first of their groups, */
    int64_t count; /* and how many there are */
    int64_t lines; /* of prompt-data: each of them is from 0 to lines - 1 */
} invar_plugin_wanted;

/* The tokens of one sample's response. Masking and the reduction over tokens are the engine's. */
typedef struct invar_plugin_tokens {
    int64_t sample; /* its number in the step, from 0 */
    int64_t count;
    const float *logp;      /* (count) of the weights in training */
    const float *old;       /* (count) of the weights that sampled, from the training forward */
    const float *rollout;   /* (count) as sampled; NULL: not known */
    const float *ref;       /* (count) of the reference model; NULL: there is none */
    const float *advantage; /* (count) */
    const uint8_t *mask;    /* (count) 1: takes part in the loss */
} invar_plugin_tokens;

/* A sample after one of its turns: the model has stopped, and waits for what comes next. */
typedef struct invar_plugin_turn {
    invar_plugin_sample sample; /* so far; its response is what the model said in all turns, and
                                   its finish that of this turn */
    int64_t turn;               /* this one's number, from 1, */
    int64_t turns;              /* of at most so many */
    const char *text;           /* what the model said in it */
    size_t text_bytes;
    int64_t first; /* its tokens are sample.tokens[first, n_tokens) */
    int64_t room;  /* tokens that the sample may still get, inserted ones included */
    int last;      /* 1: the sample can only end */
} invar_plugin_turn;

/*
 * What comes next, zeroed before: something is inserted, a text or tokens, and the model goes on;
 * or the sample ends. Pointers are the plug-in's, and must last until its next call.
 */
typedef struct invar_plugin_next {
    int end; /* 1: the sample ends */
    /* of one that ends */
    int rewarded; /* 1: with this reward; 0: it is judged as the recipe says */
    double reward;
    const double *parts; /* (part_names) that the reward consists of; NULL: none */
    /* of one that goes on */
    const char *text; /* (text_bytes) UTF-8; NULL: the tokens */
    size_t text_bytes;
    const int32_t *tokens; /* (n_tokens) */
    int64_t n_tokens;
    int64_t max_tokens;      /* of the next turn; 0: as the recipe says */
    const char *const *stop; /* strings that end the next turn, a NULL after the last; NULL: those
                                of the recipe */
} invar_plugin_next;

enum {
    INVAR_PLUGIN_AFTER_INIT = 0,
    INVAR_PLUGIN_BEFORE_LOGPROB = 1,
    INVAR_PLUGIN_BEFORE_TRAIN_STEP = 2,
    INVAR_PLUGIN_AFTER_ROLLOUT = 3,
    INVAR_PLUGIN_AFTER_EVAL = 4
};

typedef struct invar_plugin_event {
    int hook;                           /* which of them */
    int64_t step;                       /* of the run; -1 after init */
    int64_t rollout;                    /* -1 after init */
    const char *run;                    /* the run's name */
    const char *folder;                 /* where the run writes */
    const invar_plugin_sample *samples; /* (count) after_rollout: the batch; after_eval: those of a
                                           set; else NULL */
    size_t count;
    const char *set; /* after_eval: the name of the evaluation set; else NULL */
} invar_plugin_event;

/* What a hook has to say; pointers are the plug-in's, and must last until its next call. */
typedef struct invar_plugin_report {
    const char *const *names; /* (count) of what it has measured, */
    const double *values;     /* (count) finite */
    size_t count;
    double loss_factor; /* before_train_step: multiplies the policy's loss of the step; 1 before */
} invar_plugin_report;

/* Fields are only ever added at the end; `size` says which are there. */
typedef struct invar_plugin_table {
    uint32_t abi;     /* INVAR_PLUGIN_ABI */
    uint32_t size;    /* sizeof(invar_plugin_table) */
    const char *name; /* printable, at most 64 bytes */
    /* Once before and once after everything else; either may be NULL. *self goes to every call. */
    int (*open)(void **self, char *error);
    void (*close)(void *self);
    /* Samples judged each alone: reward[i] of samples[i], finite. */
    int (*reward)(void *self, const invar_plugin_sample *samples, size_t count, double *reward,
                  char *error);
    /* The samples of one group, judged together. */
    int (*group_reward)(void *self, const invar_plugin_sample *samples, size_t count,
                        double *reward, char *error);
    /* verdict[i]: INVAR_PLUGIN_KEEP, _REMOVE or _DROP. */
    int (*filter)(void *self, const invar_plugin_sample *samples, size_t count, uint8_t *verdict,
                  char *error);
    /* loss[t] of each token and the derivative dlogp[t] of their sum by logp[t]; finite. */
    int (*loss)(void *self, const invar_plugin_tokens *tokens, float *dlogp, float *loss,
                char *error);
    /* Told, not asked; but a failure ends the run. */
    int (*hook)(void *self, const invar_plugin_event *event, char *error);
    /* Names of the parts that rewards consist of, at most 32, a NULL after the last. */
    const char *const *part_names;
    /* Right after reward or group_reward, for the same samples: part[i * names + k], finite. */
    int (*parts)(void *self, const invar_plugin_sample *samples, size_t count, double *part,
                 char *error);
    /* Turns of samples, each alone: next[i] after turns[i]. */
    int (*generate)(void *self, const invar_plugin_turn *turns, size_t count,
                    invar_plugin_next *next, char *error);
    /* Right after `hook`, if that is offered, of the same event; report is 0, its factor 1. */
    int (*report)(void *self, const invar_plugin_event *event, invar_plugin_report *report,
                  char *error);
    /* Groups that wait, oldest first. verdict[i]: INVAR_PLUGIN_TAKE, _WAIT or _DROP. */
    int (*buffer_filter)(void *self, const invar_plugin_buffer *buffer,
                         const invar_plugin_sample *samples, size_t count, uint8_t *verdict,
                         char *error);
    /* line[i]: where in prompt-data, from 0, the i-th of the wanted prompts stands. */
    int (*prompts)(void *self, const invar_plugin_wanted *wanted, int64_t *line, char *error);
} invar_plugin_table;

#define INVAR_PLUGIN_HEAD(name) INVAR_PLUGIN_ABI, (uint32_t)sizeof(invar_plugin_table), (name)

extern INVAR_PLUGIN_EXPORT const invar_plugin_table invar_plugin_v1;

#ifdef __cplusplus
}
#endif
#endif
