/*
 * dataset.c - fuzz target: any bytes are a data set, or are rejected with the line.
 *
 * An accepted data set is consistent: tokens decode to the text, lines are in order, answers exist
 * only if they are requested, and a second read gives the same digest.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "base/alloc.h"
#include "tests/fuzz/fuzz.h"
#include "tests/unit/engine/files/data/options.h"

#define ALPHABET                                                                                   \
    " !\"#$%&'()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstuv"    \
    "wxyz{|}~"

static const invar_tokenizer *tokenizer(void)
{
    static invar_tokenizer *result;

    if (!result)
        INVAR_CHECK(invar_tokenizer_alphabet(&result, ALPHABET) == INVAR_OK);
    return result;
}

static void check_refusal(invar_status status)
{
    const char *message = invar_error_last()->message;

    INVAR_CHECK(status == INVAR_E_INVALID);
    INVAR_CHECK(strncmp(message, "fuzz", 4) == 0);
    for (; *message; message++)
        INVAR_CHECK((unsigned char)*message >= 0x20 && *message != 0x7F);
}

static void check_prompt(const invar_prompt *p, const invar_dataset_options *options)
{
    char *text;
    size_t bytes;

    INVAR_CHECK(p->n_tokens > 0 && p->n_tokens <= options->max_prompt_tokens);
    INVAR_CHECK(!p->answer == !options->sft && !p->answer_mask == !options->sft);
    INVAR_CHECK(p->metadata[0] == '{' && p->label);
    INVAR_CHECK(invar_tokenizer_decode(&text, &bytes, tokenizer(), p->tokens, p->n_tokens, false) ==
                INVAR_OK);
    INVAR_CHECK(strlen(p->text) == bytes && memcmp(text, p->text, bytes) == 0);
    invar_free(text);
}

static void fuzz(const invar_dataset_options *options, const char *data, size_t size)
{
    invar_dataset *dataset, *reread;
    invar_digest a, b;
    int64_t line = -1;
    invar_status status = invar_dataset_parse(&dataset, options, tokenizer(), data, size);

    if (status != INVAR_OK) {
        INVAR_CHECK(!dataset);
        check_refusal(status);
        return;
    }
    for (int64_t i = 0; i < invar_dataset_size(dataset); i++) {
        const invar_prompt *p = invar_dataset_prompt(dataset, i);
        INVAR_CHECK(p->line > line);
        line = p->line;
        check_prompt(p, options);
    }
    INVAR_CHECK(invar_dataset_parse(&reread, options, tokenizer(), data, size) == INVAR_OK);
    invar_dataset_hash(&a, dataset);
    invar_dataset_hash(&b, reread);
    INVAR_CHECK(invar_digest_equal(&a, &b));
    invar_dataset_close(dataset);
    invar_dataset_close(reread);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    invar_dataset_options options = dataset_options("fuzz", "");

    options.max_prompt_tokens = 40;
    fuzz(&options, (const char *)data, size);
    options.label_key = "label";
    options.sft = true;
    fuzz(&options, (const char *)data, size);
    return 0;
}
