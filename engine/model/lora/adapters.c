/*
 * adapters.c - LoRA: parses target modules and patterns, and declares the adapters' parameters.
 *
 * rank-pattern and alpha-pattern map ends of layer names to numbers, a subset of peft's regular
 * expressions. A pattern that matches no layer is an error. So are two patterns that match a layer
 * and disagree, because files may store patterns in any order.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/lora/adapters.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/json/json.h"
#include "base/text.h"

#include "base/invar_banned.h"

#define ALL "all-linear"
#define WEIGHT ".weight"
#define FIRST ".lora_A.weight"
#define SECOND ".lora_B.weight"
#define STEP_GROUP 16 /* products of a bf16 dot-step */
#define RANKS "rank-pattern"
#define ALPHAS "alpha-pattern"
#define IN_NAMES "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_."

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

/* ---- patterns -------------------------------------------------------------------------------- */

static invar_status reject_pattern(const char *key, const char *name, const char *why)
{
    return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: '%.80s' %s", key, name, why);
}

/* Returns true for names such as "experts.down_proj" or "7.down_proj". */
static bool names_experts(const char *name, const char *last)
{
    return strstr(name, "experts") || (last - name > 1 && last[-2] >= '0' && last[-2] <= '9');
}

static invar_status check_pattern(const char *key, const char *name, const json_t *value)
{
    const bool is_rank = strcmp(key, RANKS) == 0;
    const char *last = strrchr(name, '.');
    double number = json_number_value(value); // 0 if it is not a number

    last = last ? last + 1 : name;
    if (strspn(name, IN_NAMES) < strlen(name))
        return reject_pattern(
            key, name,
            "is a regular expression: take the end of a layer's name, as in mlp.up_proj");
    if (module_of(last, strlen(last)) == N_MODULES)
        return reject_pattern(key, name,
                              "does not end with the name of a linear layer with an adapter");
    if (names_experts(name, last))
        return reject_pattern(key, name, "names experts: those of a layer share rank and alpha");
    if (is_rank && (!json_is_integer(value) || number < 1 || number > 4096))
        return reject_pattern(key, name, "has no rank from 1 to 4096");
    if (!is_rank && !(number >= 1e-6 && number <= 1e6))
        return reject_pattern(key, name, "has no number from 1e-6 to 1e6");
    return INVAR_OK;
}

static invar_status check_patterns(const char *key, const json_t *patterns)
{
    const char *name;
    json_t *value;

    if (!json_is_object(patterns))
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "%s: is no object of names and numbers, as in {\"mlp.up_proj\": 8}", key);
    json_object_foreach((json_t *)(uintptr_t)patterns, name, value)
    {
        INVAR_TRY(check_pattern(key, name, value));
    }
    return INVAR_OK;
}

/* Parses patterns; *out = NULL if the text is empty. The caller frees *out with json_decref. */
static invar_status read_patterns(json_t **out, const char *key, const char *text)
{
    INVAR_AUTO_JSON json_t *patterns = NULL;

    *out = NULL;
    if (!text[0])
        return INVAR_OK;
    INVAR_TRY(invar_json_parse(&patterns, key, text, strlen(text)));
    INVAR_TRY(check_patterns(key, patterns));
    *out = patterns;
    patterns = NULL;
    return INVAR_OK;
}

static invar_status store_patterns(char out[INVAR_LORA_PATTERN_SIZE], const char *key,
                                   const char *text)
{
    json_t *patterns;

    if (strlen(text) >= INVAR_LORA_PATTERN_SIZE)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: is longer than %d bytes", key,
                          INVAR_LORA_PATTERN_SIZE - 1);
    INVAR_TRY(read_patterns(&patterns, key, text));
    json_decref(patterns);
    memcpy(out, text, strlen(text) + 1);
    return INVAR_OK;
}

invar_status invar_lora_patterns(invar_lora_spec *out, const char *ranks, const char *alphas)
{
    INVAR_TRY(store_patterns(out->ranks, RANKS, ranks));
    return store_patterns(out->alphas, ALPHAS, alphas);
}

/* Returns true if the layer's name is `name` or ends with "." and `name`. */
static bool matches_layer(const char *name, const invar_param *p)
{
    size_t length = strlen(name), all = strlen(p->name) - strlen(WEIGHT);

    return length <= all && strncmp(p->name + all - length, name, length) == 0 &&
           (length == all || p->name[all - length - 1] == '.');
}

/*
 * *out = number of the patterns that match; NULL if no pattern matches. Patterns with different
 * numbers are an error, because files do not keep their order.
 */
static invar_status find_pattern_value(const json_t **out, const char *key, const json_t *patterns,
                                       const invar_param *p)
{
    const char *name;
    json_t *value;

    *out = NULL;
    json_object_foreach((json_t *)(uintptr_t)patterns, name, value)
    {
        if (!matches_layer(name, p))
            continue;
        if (*out && json_number_value(*out) != json_number_value(value))
            return reject_pattern(key, p->name,
                                  "has two numbers: the names of two patterns end it");
        *out = value;
    }
    return INVAR_OK;
}

/* Determines the number of a layer; `otherwise` if no pattern matches. */
static invar_status layer_number(double *out, const char *key, const char *text,
                                 const invar_param *p, double otherwise)
{
    INVAR_AUTO_JSON json_t *patterns = NULL;
    const json_t *value = NULL;

    INVAR_TRY(read_patterns(&patterns, key, text));
    INVAR_TRY(find_pattern_value(&value, key, patterns, p));
    *out = value ? json_number_value(value) : otherwise;
    return INVAR_OK;
}

invar_status invar_lora_layer(int64_t *rank_out, float *factor_out, const invar_lora_spec *lora,
                              const invar_param *p)
{
    double rank, alpha;
    invar_lora_spec own = {.rslora = lora->rslora};

    INVAR_TRY(layer_number(&rank, RANKS, lora->ranks, p, (double)lora->rank));
    INVAR_TRY(layer_number(&alpha, ALPHAS, lora->alphas, p, (double)lora->alpha));
    own.rank = (int64_t)rank;
    own.alpha = (float)alpha;
    *rank_out = own.rank;
    *factor_out = invar_lora_factor(&own);
    return INVAR_OK;
}

/* ---- parameters ------------------------------------------------------------------------------ */

float invar_lora_factor(const invar_lora_spec *lora)
{
    if (lora->rank == 0)
        return 0.0f;
    return lora->rslora ? (float)((double)lora->alpha / sqrt((double)lora->rank))
                        : lora->alpha / (float)lora->rank;
}

static int64_t pad_rank(int64_t rank)
{
    return (rank + STEP_GROUP - 1) / STEP_GROUP * STEP_GROUP;
}

int64_t invar_lora_rows(const invar_lora_spec *lora)
{
    return lora->ranks[0] ? STEP_GROUP : pad_rank(lora->rank);
}

static bool is_adapted(const invar_lora_spec *lora, const invar_param *p)
{
    char end[32];

    if (lora->rank == 0 || (p->kind != INVAR_PARAM_LINEAR && p->kind != INVAR_PARAM_EXPERT))
        return false;
    for (int i = 0; i < N_MODULES; i++) {
        (void)snprintf(end, sizeof end, ".%s" WEIGHT, modules[i]);
        if (invar_text_has_suffix(p->name, end))
            return lora->targets >> i & 1;
    }
    return false;
}

int64_t invar_adapters_count(const invar_param *base, int64_t count, const invar_lora_spec *lora)
{
    int64_t adapted = 0;

    for (int64_t i = 0; i < count; i++)
        adapted += is_adapted(lora, &base[i]);
    return 2 * adapted;
}

/* Declares A or B with `rows` rows and `cols` columns; `cut` if it is split like the layer. */
static invar_param adapter_param(const invar_param *of, const char *end, int64_t rows, int64_t cols,
                                 bool cut)
{
    invar_param p = {.kind = INVAR_PARAM_ADAPTER,
                     .layer = of->layer,
                     .stack = of->stack,
                     .rows = rows,
                     .cols = cols,
                     .split = {.shards = 1, .experts = of->stack}};
    int length = (int)(strlen(of->name) - strlen(WEIGHT));

    if (cut)
        p.split = of->split;
    (void)snprintf(p.name, sizeof p.name, "%.*s%s", length < 80 ? length : 80, of->name, end);
    return p;
}

/* Rejects a pattern that matches no layer, which is probably a typing error. */
static invar_status check_patterns_used(const char *key, const char *text, const invar_param *base,
                                        int64_t count, const invar_lora_spec *lora)
{
    INVAR_AUTO_JSON json_t *patterns = NULL;
    json_t *value;
    const char *name;

    INVAR_TRY(read_patterns(&patterns, key, text));
    json_object_foreach(patterns, name, value)
    {
        int64_t i = 0;
        while (i < count && !(is_adapted(lora, &base[i]) && matches_layer(name, &base[i])))
            i++;
        if (i == count)
            return reject_pattern(key, name,
                                  "names no layer with an adapter of this model: leave it out");
    }
    return INVAR_OK;
}

invar_status invar_adapters_check(const invar_param *base, int64_t count,
                                  const invar_lora_spec *lora)
{
    INVAR_TRY(check_patterns_used(RANKS, lora->ranks, base, count, lora));
    return check_patterns_used(ALPHAS, lora->alphas, base, count, lora);
}

invar_status invar_adapters_declare(invar_param *out, invar_param *base, int64_t count,
                                    const invar_lora_spec *lora)
{
    for (int64_t i = 0; i < count; i++) {
        invar_param *p = &base[i];
        int64_t rank;
        float factor;
        if (!is_adapted(lora, p))
            continue;
        INVAR_TRY(invar_lora_layer(&rank, &factor, lora, p));
        p->adapter = out;
        out[0] = adapter_param(p, FIRST, pad_rank(rank), p->cols, p->split.columns);
        out[1] = adapter_param(p, SECOND, p->rows, pad_rank(rank), !p->split.columns);
        out[0].rank = out[1].rank = rank;
        out[0].factor = out[1].factor = factor;
        out += 2;
    }
    return INVAR_OK;
}

bool invar_adapter_is_first(const invar_param *p)
{
    return invar_text_has_suffix(p->name, FIRST);
}
