/*
 * builtin_task.c - makes the items of built-in tasks from Philox random numbers.
 *
 * The k-th choice of item i among n options is floor(w * n / 2^32), with w = word k % 4 of
 * Philox4x32-10 with counter (i, k / 4, 0, 0) and key (seed, 4).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/files/data/builtin_task.h"

#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "kernels-deterministic/math/philox.h"

#include "base/invar_banned.h"

#define PURPOSE_TASK 4
#define MAX_SYMBOLS 4 /* largest number of symbols of a sequence */

typedef struct task_rng {
    uint32_t seed, item, next;
} task_rng;

static int choose_index(task_rng *d, int n)
{
    uint32_t counter[4] = {d->item, d->next / 4, 0, 0};
    uint32_t key[2] = {d->seed, invar_philox_purpose(PURPOSE_TASK, 0)}, word[4];

    invar_philox4x32(word, counter, key);
    return (int)((uint64_t)word[d->next++ % 4] * (uint64_t)n >> 32);
}

/*
 * Chooses 2 to MAX_SYMBOLS symbols; the prompt ends with an equals sign, the answer is the symbols
 * only.
 */
static int choose_symbols(invar_builtin_task_item *out, task_rng *d, const char *symbols, int n)
{
    int length = 2 + choose_index(d, MAX_SYMBOLS - 1);

    for (int i = 0; i < length; i++)
        out->prompt[i] = out->answer[i] = symbols[choose_index(d, n)];
    out->answer[length] = '\0';
    out->prompt[length] = '=';
    out->prompt[length + 1] = '\0';
    return length;
}

/* ---- tasks ----------------------------------------------------------------------------------- */

#define DIGITS "0123456789"
#define LETTERS "abcdefgh"

static void make_max(invar_builtin_task_item *out, task_rng *d)
{
    int a = choose_index(d, 10), b = choose_index(d, 10);

    snprintf(out->prompt, sizeof out->prompt, "%d,%d=", a, b);
    snprintf(out->answer, sizeof out->answer, "%d", a > b ? a : b);
}

static void make_add(invar_builtin_task_item *out, task_rng *d)
{
    int a = choose_index(d, 10), b = choose_index(d, 10);

    snprintf(out->prompt, sizeof out->prompt, "%d+%d=", a, b);
    snprintf(out->answer, sizeof out->answer, "%d", a + b);
}

static void make_last(invar_builtin_task_item *out, task_rng *d)
{
    int length = choose_symbols(out, d, LETTERS, sizeof LETTERS - 1);

    out->answer[0] = out->answer[length - 1];
    out->answer[1] = '\0';
}

static void make_copy(invar_builtin_task_item *out, task_rng *d)
{
    choose_symbols(out, d, LETTERS, sizeof LETTERS - 1);
}

static void make_reverse(invar_builtin_task_item *out, task_rng *d)
{
    int length = choose_symbols(out, d, LETTERS, sizeof LETTERS - 1);

    for (int i = 0; i < length; i++)
        out->answer[i] = out->prompt[length - 1 - i];
}

static void make_sort(invar_builtin_task_item *out, task_rng *d)
{
    int length = choose_symbols(out, d, DIGITS, 10);

    for (int i = 1; i < length; i++) {
        for (int j = i; j > 0 && out->answer[j] < out->answer[j - 1]; j--) {
            char larger = out->answer[j - 1];
            out->answer[j - 1] = out->answer[j];
            out->answer[j] = larger;
        }
    }
}

/*
 * Makes a secret that the prompt does not contain: it takes several turns to find it
 * (engine/ext/example).
 */
static void make_guess(invar_builtin_task_item *out, task_rng *d)
{
    snprintf(out->prompt, sizeof out->prompt, "?");
    snprintf(out->answer, sizeof out->answer, "%d", 1 + choose_index(d, 7));
}

static const struct {
    const char *name;
    const char *alphabet;
    void (*make)(invar_builtin_task_item *out, task_rng *d);
} tasks[] = {
    {"last", LETTERS "=", make_last},       {"max", DIGITS ",=", make_max},
    {"add", DIGITS "+=", make_add},         {"copy", LETTERS "=", make_copy},
    {"reverse", LETTERS "=", make_reverse}, {"sort", DIGITS "=", make_sort},
    {"guess", DIGITS "<>?", make_guess},
};

#define TASK_COUNT (int)(sizeof tasks / sizeof *tasks)

static int find_task(const char *name)
{
    int i = 0;

    while (i < TASK_COUNT && strcmp(tasks[i].name, name) != 0)
        i++;
    return i;
}

const char *invar_builtin_task_name(int i)
{
    return i >= 0 && i < TASK_COUNT ? tasks[i].name : NULL;
}

const char *invar_builtin_task_alphabet(const char *name)
{
    int i = find_task(name);

    return i < TASK_COUNT ? tasks[i].alphabet : NULL;
}

invar_status invar_builtin_task_make(invar_builtin_task_item *out, const char *name, uint32_t seed,
                                     uint32_t i)
{
    char known[128] = "";
    task_rng d = {seed, i, 0};
    size_t used = 0;
    int task = find_task(name);

    if (task < TASK_COUNT) {
        tasks[task].make(out, &d);
        return INVAR_OK;
    }
    for (int k = 0; k < TASK_COUNT && used < sizeof known; k++)
        used += (size_t)snprintf(known + used, sizeof known - used, " %s", tasks[k].name);
    return INVAR_FAIL(INVAR_E_NOTFOUND, 0, "no built-in task '%s'; there are%s", INVAR_QUOTED(name),
                      known);
}
