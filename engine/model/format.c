/*
 * format.c - table of the number formats, from formats.def.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/format.h"

#include "base/invar_banned.h"

#define STEP_GROUP                                                                                 \
    16 /* dx sums q, k, v and gate, up in one chain: each part must end with a complete group of
          dot-steps */

static const invar_format_traits formats[INVAR_FORMAT_COUNT] = {
#define INVAR_FORMAT(ID, NAME, ...) [INVAR_FORMAT_##ID] = {__VA_ARGS__},
#include "engine/model/formats.def"
#undef INVAR_FORMAT
};

static const char *const names[INVAR_FORMAT_COUNT] = {
#define INVAR_FORMAT(ID, NAME, ...) [INVAR_FORMAT_##ID] = (NAME),
#include "engine/model/formats.def"
#undef INVAR_FORMAT
};

const invar_choices invar_format_choices = {names, INVAR_FORMAT_COUNT};

const invar_format_traits *invar_format_traits_of(invar_format format)
{
    return &formats[format];
}

const char *invar_format_name(invar_format format)
{
    return invar_choices_word(&invar_format_choices, (int)format);
}

invar_dtype invar_format_storage(invar_format format)
{
    return formats[format].storage;
}

int64_t invar_format_head_block(invar_format format)
{
    int64_t block = invar_dtype_scale_block(formats[format].linear);

    return block > STEP_GROUP ? block : STEP_GROUP;
}
