/*
 * reward_ifeval.c - reward for obeying rules of form (IFEval) that the sample's metadata state.
 *
 * The rules are those of the data set IFEval that need no language model and no dictionary, one row
 * of a table and one function each. Letters and blanks are those of ASCII. Metadata are untrusted:
 * unknown rules and wrong arguments are errors.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <string.h>

#include "base/json/json.h"
#include "base/text.h"
#include "engine/rl/reward/reward_functions.h"

#include "base/invar_banned.h"

/* A rule that is being checked. */
typedef struct form_rule {
    const char *name;
    invar_str_view text;
    const json_t *arguments; /* a JSON object, or NULL */
    const invar_rl_sample *sample;
} form_rule;

/* ---- arguments ------------------------------------------------------------------------------- */

static invar_status argument_error(const form_rule *r, const char *key, const char *expected)
{
    return INVAR_FAIL(INVAR_E_INVALID, 0,
                      "metadata of sample %" PRId64 ": the rule %s needs \"%s\", %s",
                      r->sample->index, r->name, key, expected);
}

static invar_status count_argument(int64_t *out, const form_rule *r, const char *key)
{
    const json_t *value = json_object_get(r->arguments, key);

    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return argument_error(r, key, "a number from 0");
    *out = (int64_t)json_integer_value(value);
    return INVAR_OK;
}

static invar_status text_argument(invar_str_view *out, const form_rule *r, const char *key)
{
    const json_t *value = json_object_get(r->arguments, key);

    if (!json_is_string(value) || json_string_length(value) == 0)
        return argument_error(r, key, "a text");
    *out = (invar_str_view){json_string_value(value), json_string_length(value)};
    return INVAR_OK;
}

/* Compares `count` with the number and the relation ("less than", "at least") of the rule. */
static invar_status compare_count(bool *out, const form_rule *r, size_t count, const char *number,
                                  const char *relation)
{
    const char *word = json_string_value(json_object_get(r->arguments, relation));
    int64_t wanted;

    INVAR_TRY(count_argument(&wanted, r, number));
    if (!word || (strcmp(word, "less than") != 0 && strcmp(word, "at least") != 0))
        return argument_error(r, relation, "\"at least\" or \"less than\"");
    *out = strcmp(word, "less than") == 0 ? count < (uint64_t)wanted : count >= (uint64_t)wanted;
    return INVAR_OK;
}

/* ---- text ------------------------------------------------------------------------------------ */

/* Counts occurrences that do not overlap, in any case; if `whole` is set, only complete words. */
static size_t count_occurrences(invar_str_view text, invar_str_view what, bool whole)
{
    size_t count = 0;

    for (size_t at = 0; at < text.length;) {
        size_t end = at + what.length;
        bool found = invar_str_view_matches(text, at, what);
        if (found && whole)
            found = (at == 0 || !invar_is_word(text.text[at - 1])) &&
                    (end == text.length || !invar_is_word(text.text[end]));
        count += found;
        at = found ? end : at + 1;
    }
    return count;
}

static invar_str_view next_line(invar_str_view *rest)
{
    const char *end = rest->length ? memchr(rest->text, '\n', rest->length) : NULL;
    invar_str_view line = {rest->text, end ? (size_t)(end - rest->text) : rest->length};
    size_t used = line.length + (end ? 1 : 0);

    *rest = (invar_str_view){rest->text + used, rest->length - used};
    return line;
}

/* ---- keywords -------------------------------------------------------------------------------- */

static invar_status check_keyword_list(bool *out, const form_rule *r)
{
    const bool wanted = strcmp(r->name, "keywords:existence") == 0;
    const char *key = wanted ? "keywords" : "forbidden_words";
    const json_t *list = json_object_get(r->arguments, key);

    if (json_array_size(list) == 0)
        return argument_error(r, key, "a list of texts");
    *out = true;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *word = json_array_get(list, i);
        if (!json_is_string(word) || json_string_length(word) == 0)
            return argument_error(r, key, "a list of texts");
        *out = *out &&
               (count_occurrences(
                    r->text, (invar_str_view){json_string_value(word), json_string_length(word)},
                    !wanted) > 0) == wanted;
    }
    return INVAR_OK;
}

static invar_status check_keyword_frequency(bool *out, const form_rule *r)
{
    invar_str_view word;

    INVAR_TRY(text_argument(&word, r, "keyword"));
    return compare_count(out, r, count_occurrences(r->text, word, false), "frequency", "relation");
}

static invar_status check_letter_frequency(bool *out, const form_rule *r)
{
    invar_str_view letter;

    INVAR_TRY(text_argument(&letter, r, "letter"));
    return compare_count(out, r, count_occurrences(r->text, letter, false), "let_frequency",
                         "let_relation");
}

/* ---- length ---------------------------------------------------------------------------------- */

static invar_status check_word_count(bool *out, const form_rule *r)
{
    size_t count = 0;

    for (size_t i = 0; i < r->text.length; i++)
        count += invar_is_word(r->text.text[i]) && (i == 0 || !invar_is_word(r->text.text[i - 1]));
    return compare_count(out, r, count, "num_words", "relation");
}

/* Counts sentences: a sentence has a word, and ends with punctuation or with the text. */
static invar_status check_sentence_count(bool *out, const form_rule *r)
{
    bool begun = false;
    size_t count = 0;

    for (size_t i = 0; i < r->text.length; i++) {
        bool ends = strchr(".!?", r->text.text[i]) && r->text.text[i];
        count += begun && ends;
        begun = !ends && (begun || invar_is_word(r->text.text[i]));
    }
    return compare_count(out, r, count + begun, "num_sentences", "relation");
}

/*
 * Counts paragraphs between lines "***"; only those before the first and after the last may be
 * empty.
 */
static invar_status check_paragraph_count(bool *out, const form_rule *r)
{
    invar_str_view rest = invar_str_view_trim(r->text);
    int64_t wanted, count = 0;
    bool filled = false, good = true;

    INVAR_TRY(count_argument(&wanted, r, "num_paragraphs"));
    while (rest.length > 0) {
        invar_str_view line = invar_str_view_trim(next_line(&rest));
        bool cut = line.length == 3 && memcmp(line.text, "***", 3) == 0;
        good = good && !(cut && !filled && count > 0);
        count += cut && filled;
        filled = cut ? false : filled || line.length > 0;
    }
    *out = good && count + filled == wanted;
    return INVAR_OK;
}

/* ---- form ------------------------------------------------------------------------------------ */

static invar_status check_bullet_count(bool *out, const form_rule *r)
{
    invar_str_view rest = r->text;
    int64_t wanted, count = 0;

    INVAR_TRY(count_argument(&wanted, r, "num_bullets"));
    while (rest.length > 0) {
        invar_str_view line = invar_str_view_trim(next_line(&rest));
        count += line.length > 1 &&
                 (line.text[0] == '-' || (line.text[0] == '*' && line.text[1] != '*'));
    }
    *out = count == wanted;
    return INVAR_OK;
}

/* Counts texts between two marks within one line that are not blank. */
static size_t count_enclosed(invar_str_view text, const char *open, const char *close)
{
    size_t count = 0, at = invar_str_view_find(text, 0, open);

    while (at < text.length) {
        size_t from = at + strlen(open), end = invar_str_view_find(text, from, close);
        invar_str_view inside = {text.text + from, end - from};
        bool found = end < text.length && !memchr(inside.text, '\n', inside.length) &&
                     invar_str_view_trim(inside).length > 0;
        count += found;
        at = invar_str_view_find(text, found ? end + strlen(close) : from, open);
    }
    return count;
}

static invar_status check_minimum(bool *out, const form_rule *r, size_t count, const char *number)
{
    int64_t wanted;

    INVAR_TRY(count_argument(&wanted, r, number));
    *out = count >= (uint64_t)wanted;
    return INVAR_OK;
}

static invar_status check_highlights(bool *out, const form_rule *r)
{
    return check_minimum(out, r, count_enclosed(r->text, "*", "*"), "num_highlights");
}

static invar_status check_placeholders(bool *out, const form_rule *r)
{
    return check_minimum(out, r, count_enclosed(r->text, "[", "]"), "num_placeholders");
}

static invar_status check_title(bool *out, const form_rule *r)
{
    *out = count_enclosed(r->text, "<<", ">>") > 0;
    return INVAR_OK;
}

static invar_status check_postscript(bool *out, const form_rule *r)
{
    invar_str_view marker;

    INVAR_TRY(text_argument(&marker, r, "postscript_marker"));
    *out = count_occurrences(r->text, marker, false) > 0;
    return INVAR_OK;
}

/* Returns the text without a code fence around it, "```json" or "```". */
static invar_str_view strip_code_fence(invar_str_view text)
{
    invar_str_view rest = invar_str_view_trim(text), last;

    if (rest.length < 6 || memcmp(rest.text, "```", 3) != 0)
        return rest;
    (void)next_line(&rest);
    last = invar_str_view_trim(rest);
    if (last.length < 3 || memcmp(last.text + last.length - 3, "```", 3) != 0)
        return rest;
    return (invar_str_view){last.text, last.length - 3};
}

static invar_status check_json(bool *out, const form_rule *r)
{
    invar_str_view text = strip_code_fence(r->text);
    json_t *value = NULL;
    invar_status status = invar_json_parse_raw(&value, "a response", text.text, text.length);

    *out = status == INVAR_OK;
    if (*out)
        json_decref(value);
    else if (status == INVAR_E_INVALID)
        invar_error_clear();
    return status == INVAR_E_INVALID ? INVAR_OK : status;
}

static invar_status check_case(bool *out, const form_rule *r)
{
    const bool capital = strcmp(r->name, "change_case:english_capital") == 0;
    bool some = false;

    *out = true;
    for (size_t i = 0; i < r->text.length; i++) {
        char c = r->text.text[i];
        if (!invar_is_letter(c) || (c & 0x80))
            continue;
        some = true;
        *out = *out && (invar_lower(c) != c) == capital;
    }
    *out = *out && some;
    return INVAR_OK;
}

static invar_status check_no_comma(bool *out, const form_rule *r)
{
    *out = invar_str_view_find(r->text, 0, ",") == r->text.length;
    return INVAR_OK;
}

static invar_status check_quotation(bool *out, const form_rule *r)
{
    invar_str_view text = invar_str_view_trim(r->text);

    *out = text.length > 1 && text.text[0] == '"' && text.text[text.length - 1] == '"';
    return INVAR_OK;
}

static invar_status check_end_phrase(bool *out, const form_rule *r)
{
    invar_str_view text = invar_str_view_trim(r->text), phrase;

    INVAR_TRY(text_argument(&phrase, r, "end_phrase"));
    phrase = invar_str_view_trim(phrase);
    if (text.length > 0 && text.text[text.length - 1] == '"')
        text = invar_str_view_trim((invar_str_view){text.text, text.length - 1});
    *out = phrase.length <= text.length &&
           invar_str_view_matches(text, text.length - phrase.length, phrase);
    return INVAR_OK;
}

/* ---- table ----------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    invar_status (*check)(bool *out, const form_rule *r);
} rules[] = {
    {"keywords:existence", check_keyword_list},
    {"keywords:forbidden_words", check_keyword_list},
    {"keywords:frequency", check_keyword_frequency},
    {"keywords:letter_frequency", check_letter_frequency},
    {"length_constraints:number_words", check_word_count},
    {"length_constraints:number_sentences", check_sentence_count},
    {"length_constraints:number_paragraphs", check_paragraph_count},
    {"detectable_format:number_bullet_lists", check_bullet_count},
    {"detectable_format:number_highlighted_sections", check_highlights},
    {"detectable_format:title", check_title},
    {"detectable_format:json_format", check_json},
    {"detectable_content:number_placeholders", check_placeholders},
    {"detectable_content:postscript", check_postscript},
    {"change_case:english_capital", check_case},
    {"change_case:english_lowercase", check_case},
    {"punctuation:no_comma", check_no_comma},
    {"startend:quotation", check_quotation},
    {"startend:end_checker", check_end_phrase},
};

static invar_status check_rule(bool *out, const form_rule *r)
{
    char quoted[INVAR_TEXT_QUOTE_SIZE];

    for (size_t i = 0; r->name && i < sizeof rules / sizeof *rules; i++)
        if (strcmp(rules[i].name, r->name) == 0)
            return rules[i].check(out, r);
    invar_text_quote(quoted, sizeof quoted, r->name ? r->name : "", r->name ? strlen(r->name) : 0);
    return INVAR_FAIL(INVAR_E_INVALID, 0,
                      "metadata of sample %" PRId64
                      ": ifeval does not know the rule \"%s\"; docs/rewards.md lists those that it "
                      "knows",
                      r->sample->index, quoted);
}

/* Counts the rules that the response obeys. */
static invar_status count_rules(size_t *held_out, size_t *all_out, const invar_reward_input *c,
                                const json_t *metadata)
{
    const json_t *names = json_object_get(metadata, "instruction_id_list");
    const json_t *arguments = json_object_get(metadata, "kwargs");

    *held_out = 0;
    *all_out = json_array_size(names);
    if (*all_out == 0 || (arguments && json_array_size(arguments) != *all_out))
        return INVAR_FAIL(
            INVAR_E_INVALID, 0,
            "metadata of sample %" PRId64
            ": ifeval needs the lists \"instruction_id_list\" and \"kwargs\", equally "
            "long",
            c->sample->index);
    for (size_t i = 0; i < *all_out; i++) {
        const form_rule r = {.name = json_string_value(json_array_get(names, i)),
                             .text = c->response,
                             .arguments = json_array_get(arguments, i),
                             .sample = c->sample};
        bool held = false;
        INVAR_TRY(check_rule(&held, &r));
        *held_out += held;
    }
    return INVAR_OK;
}

invar_status invar_reward_fn_ifeval(double *out, const invar_reward_input *c)
{
    const char *text = c->sample->data.metadata;
    size_t held, all;
    json_t *metadata;
    invar_status status;

    *out = 0.0;
    INVAR_TRY(invar_json_parse(&metadata, "metadata of a sample", text, strlen(text)));
    status = count_rules(&held, &all, c, metadata);
    json_decref(metadata);
    INVAR_TRY(status);
    *out = (double)held / (double)all;
    INVAR_TRY(invar_reward_parts_add(c->parts, "loose", strlen("loose"), *out, "ifeval"));
    return invar_reward_parts_add(c->parts, "strict", strlen("strict"), held == all ? 1.0 : 0.0,
                                  "ifeval");
}
