/*
 * tensor_names.c - names of parameters in a Hugging Face folder.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/files/hf/tensor_names.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/invar_banned.h"

#define EXPERTS ".experts."

/* Returns true for a stack of experts, whose tensors are numbered. */
static bool is_numbered(const invar_param *p)
{
    return p->kind == INVAR_PARAM_EXPERT ||
           (p->kind == INVAR_PARAM_ADAPTER && strstr(p->name, EXPERTS));
}

void invar_hf_name(char out[INVAR_HF_NAME_SIZE], const invar_param *param, int64_t expert)
{
    const char *rest = strstr(param->name, EXPERTS);

    if (!is_numbered(param)) {
        snprintf(out, INVAR_HF_NAME_SIZE, "%s", param->name);
        return;
    }
    INVAR_CHECK(rest);
    rest += strlen(EXPERTS);
    snprintf(out, INVAR_HF_NAME_SIZE, "%.*s%" PRId64 ".%s", (int)(rest - param->name), param->name,
             expert, rest);
}

/*
 * Splits "...experts.7.up_proj.weight" into the name without the number and the number. Returns
 * false if there is no number.
 */
static bool split_expert(char out[INVAR_PARAM_NAME_SIZE], int64_t *expert_out, const char *name)
{
    const char *number = strstr(name, EXPERTS);
    size_t head, digits;
    int64_t expert = 0;

    if (!number || strlen(name) >= INVAR_PARAM_NAME_SIZE)
        return false;
    number += strlen(EXPERTS);
    digits = strspn(number, "0123456789");
    if (digits == 0 || digits > 6 || number[digits] != '.' || (digits > 1 && number[0] == '0'))
        return false;
    for (size_t i = 0; i < digits; i++)
        expert = expert * 10 + (number[i] - '0');
    head = (size_t)(number - name);
    memcpy(out, name, head);
    snprintf(out + head, INVAR_PARAM_NAME_SIZE - head, "%s", number + digits + 1);
    *expert_out = expert;
    return true;
}

invar_param *invar_hf_find(int64_t *expert_out, const invar_model *model, const char *name)
{
    char stacked[INVAR_PARAM_NAME_SIZE];
    bool numbered = split_expert(stacked, expert_out, name);
    invar_param *param = invar_model_find(model, numbered ? stacked : name);

    if (!numbered)
        *expert_out = 0;
    if (!param || numbered != is_numbered(param) || *expert_out >= param->stack)
        return NULL;
    return param;
}
