/*
 * adapters.c - LoRA: which linear layers have an adapter, and its parameters.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/lora/adapters.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"

#include "base/invar_banned.h"

#define ALL "all-linear"
#define WEIGHT ".weight"
#define FIRST ".lora_A.weight"
#define SECOND ".lora_B.weight"
#define STEP_GROUP 16 /* products of a bf16 step */

static const char *const modules[] = {"q_proj",    "k_proj",  "v_proj",   "o_proj",
                                      "gate_proj", "up_proj", "down_proj"};

enum { N_MODULES = sizeof modules / sizeof *modules };

/* ---- names ----------------------------------------------------------------------------------- */

static int module_of(const char *word, size_t length)
{
    int i = 0;

    while (i < N_MODULES &&
           !(strlen(modules[i]) == length && strncmp(modules[i], word, length) == 0))
        i++;
    return i;
}

invar_status invar_lora_targets(uint32_t *out, const char *words)
{
    const char *word = words;

    *out = 0;
    if (strcmp(words, ALL) == 0) {
        *out = (UINT32_C(1) << N_MODULES) - 1;
        return INVAR_OK;
    }
    for (;;) {
        size_t length = strcspn(word, ",");
        int module = module_of(word, length);

        if (module == N_MODULES)
            return INVAR_FAIL(INVAR_E_INVALID, 0,
                              "target-modules: '%.*s' is no linear layer with an adapter; take " ALL
                              " or some of q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, "
                              "down_proj, with commas between",
                              (int)(length < 60 ? length : 60), word);
        *out |= UINT32_C(1) << module;
        if (!word[length])
            return INVAR_OK;
        word += length + 1;
    }
}

const char *invar_lora_target(uint32_t targets, int number)
{
    for (int i = 0; i < N_MODULES; i++)
        if (targets >> i & 1 && number-- == 0)
            return modules[i];
    return NULL;
}

/* ---- parameters ------------------------------------------------------------------------------ */

float invar_lora_factor(const invar_lora_spec *lora)
{
    if (lora->rank == 0)
        return 0.0f;
    return lora->rslora ? (float)((double)lora->alpha / sqrt((double)lora->rank))
                        : lora->alpha / (float)lora->rank;
}

int64_t invar_lora_rows(const invar_lora_spec *lora)
{
    return (lora->rank + STEP_GROUP - 1) / STEP_GROUP * STEP_GROUP;
}

static bool adapts(const invar_lora_spec *lora, const invar_param *p)
{
    char end[32];

    if (lora->rank == 0 || (p->kind != INVAR_PARAM_LINEAR && p->kind != INVAR_PARAM_EXPERT))
        return false;
    for (int i = 0; i < N_MODULES; i++) {
        (void)snprintf(end, sizeof end, ".%s" WEIGHT, modules[i]);
        if (invar_text_ends(p->name, end))
            return lora->targets >> i & 1;
    }
    return false;
}

int64_t invar_adapters_count(const invar_param *base, int64_t count, const invar_lora_spec *lora)
{
    int64_t adapted = 0;

    for (int64_t i = 0; i < count; i++)
        adapted += adapts(lora, &base[i]);
    return 2 * adapted;
}

/* One of the two, of so many rows and columns; `cut`: as the layer is. */
static invar_param declare(const invar_param *of, const char *end, int64_t rows, int64_t cols,
                           bool cut)
{
    invar_param p = {.kind = INVAR_PARAM_ADAPTER,
                     .layer = of->layer,
                     .stack = of->stack,
                     .rows = rows,
                     .cols = cols,
                     .cut = {.pieces = 1, .stack = of->stack}};
    int length = (int)(strlen(of->name) - strlen(WEIGHT));

    if (cut)
        p.cut = of->cut;
    (void)snprintf(p.name, sizeof p.name, "%.*s%s", length < 80 ? length : 80, of->name, end);
    return p;
}

void invar_adapters_declare(invar_param *out, invar_param *base, int64_t count,
                            const invar_lora_spec *lora)
{
    int64_t rank = invar_lora_rows(lora);

    for (int64_t i = 0; i < count; i++) {
        invar_param *p = &base[i];
        if (!adapts(lora, p))
            continue;
        p->adapter = out;
        *out++ = declare(p, FIRST, rank, p->cols, p->cut.columns);
        *out++ = declare(p, SECOND, p->rows, rank, !p->cut.columns);
    }
}

bool invar_adapter_is_first(const invar_param *p)
{
    return invar_text_ends(p->name, FIRST);
}
