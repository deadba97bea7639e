/*
 * file.c - tests of rollout files: round trips bit for bit, failed writes, and damage.
 *
 * Every bit of a file is flipped and the file is cut after every byte. Wrong content with a valid
 * trailer must be named; the control with a valid change is accepted.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/rollout/file/rollout_file.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/file.h"
#include "engine/sample/rollout/file/trailer.h"
#include "tests/rollout_samples.h"
#include "tests/support.h"

static char folder[] = INVAR_TEST_WORK "/rollout_file-XXXXXX";
static char path[sizeof folder + 32];

/* ---- round trips ----------------------------------------------------------------------------- */

static void assert_same_bytes(const void *a, const void *b, size_t bytes)
{
    assert_int_equal(!a, !b);
    if (a)
        assert_memory_equal(a, b, bytes);
}

static void assert_same_sample(const invar_rl_sample *a, const invar_rl_sample *b)
{
    size_t response = (size_t)invar_rl_sample_response(a);

    assert_int_equal(a->index, b->index);
    assert_int_equal(a->group, b->group);
    assert_int_equal(a->data.line, b->data.line);
    assert_int_equal(a->rollout, b->rollout);
    assert_int_equal(a->draw_index, b->draw_index);
    assert_int_equal(a->prompt_tokens, b->prompt_tokens);
    assert_int_equal(a->n_tokens, b->n_tokens);
    assert_int_equal(a->route_size, b->route_size);
    assert_same_bytes(a->tokens, b->tokens, (size_t)a->n_tokens * 4);
    assert_same_bytes(a->logp, b->logp, response * 4);
    assert_same_bytes(a->mask, b->mask, response);
    assert_same_bytes(a->routing, b->routing, (size_t)((a->n_tokens - 1) * a->route_size) * 4);
    assert_int_equal(a->response_bytes, b->response_bytes);
    assert_same_bytes(a->response, b->response, a->response_bytes + 1);
    assert_string_equal(a->data.label, b->data.label);
    assert_string_equal(a->data.metadata, b->data.metadata);
    assert_string_equal(a->data.prompt, b->data.prompt);
    assert_int_equal(a->finish, b->finish);
    assert_int_equal(a->weights.last, b->weights.last);
    assert_true(invar_digest_equal(&a->weights.hash, &b->weights.hash));
    assert_true(invar_digest_equal(&a->data.hash, &b->data.hash));
    assert_same_bytes(&a->reward, &b->reward, sizeof a->reward);
    assert_true(invar_reward_parts_equal(&a->parts, &b->parts));
    assert_int_equal(a->is_masked_out, b->is_masked_out);
    assert_int_equal(a->turns, b->turns);
}

static void assert_same_header(const invar_rollout_header *a, const invar_rollout_header *b)
{
    const invar_sampling_params *s = &a->sampling, *t = &b->sampling;

    assert_int_equal(a->rollout, b->rollout);
    assert_true(invar_digest_equal(&a->run, &b->run));
    assert_int_equal(a->weights, b->weights);
    assert_true(invar_digest_equal(&a->weights_hash, &b->weights_hash));
    assert_true(invar_digest_equal(&a->tokenizer, &b->tokenizer));
    assert_int_equal(a->n_samples_per_prompt, b->n_samples_per_prompt);
    assert_int_equal(a->filters, b->filters);
    assert_int_equal(a->filtered, b->filtered);
    assert_int_equal(s->seed, t->seed);
    assert_int_equal(s->purpose, t->purpose);
    invar_assert_bits_f32(&s->temperature, &t->temperature, 1, "temperature");
    assert_int_equal(s->top_k, t->top_k);
    invar_assert_bits_f32(&s->top_p, &t->top_p, 1, "top_p");
    invar_assert_bits_f32(&s->min_p, &t->min_p, 1, "min_p");
    assert_int_equal(s->max_response, t->max_response);
    assert_int_equal(s->max_context, t->max_context);
    assert_int_equal(s->min_response, t->min_response);
    assert_int_equal(s->n_stop_ids, t->n_stop_ids);
    assert_same_bytes(s->stop_ids, t->stop_ids, (size_t)s->n_stop_ids * 4);
    assert_int_equal(s->n_stop, t->n_stop);
    for (int64_t i = 0; i < s->n_stop; i++)
        assert_string_equal(s->stop[i], t->stop[i]);
    assert_int_equal(s->skip_special, t->skip_special);
    assert_int_equal(!a->policy.dtype, !b->policy.dtype);
    if (!a->policy.dtype)
        return;
    assert_string_equal(a->policy.dtype, b->policy.dtype);
    assert_string_equal(a->policy.numerics, b->policy.numerics);
    assert_true(invar_digest_equal(&a->policy.model, &b->policy.model));
}

static void round_trip_with(invar_rollout_header header, const invar_rl_samples *samples)
{
    char *first, *second;
    size_t first_bytes, second_bytes;
    invar_rollout_file data;

    assert_ok(invar_rollout_file_write(path, &header, samples->items, samples->count));
    assert_ok(invar_file_read(&first, &first_bytes, path, 1 << 24));
    assert_ok(invar_rollout_file_read(&data, path));
    assert_same_header(&header, &data.header);
    assert_int_equal(data.samples.count, samples->count);
    for (int64_t i = 0; i < samples->count; i++)
        assert_same_sample(&samples->items[i], &data.samples.items[i]);
    // writing the parsed data gives the same bytes
    assert_ok(invar_rollout_file_write(path, &data.header, data.samples.items, data.samples.count));
    assert_ok(invar_file_read(&second, &second_bytes, path, 1 << 24));
    assert_int_equal(first_bytes, second_bytes);
    assert_memory_equal(first, second, first_bytes);
    invar_free(first);
    invar_free(second);
    invar_rollout_file_release(&data);
}

static void round_trip(const invar_rl_samples *samples)
{
    round_trip_with(rollout_header(), samples);
}

/* Version 0.1.0 and checkpoints write headers without a policy. */
static void test_engine_rollout_file__keeps_version_1_without_policy(void **state)
{
    static const char start[] = "{\"format\":\"invar-rollout\",\"version\":1,";
    invar_rollout_header header = rollout_header();
    invar_rl_samples samples;
    char *text;
    size_t bytes;

    (void)state;
    header.policy = (invar_rollout_policy){NULL, NULL, {{0}}};
    make_rollout(&samples, 2, 5);
    round_trip_with(header, &samples);
    assert_ok(invar_file_read(&text, &bytes, path, 1 << 24));
    assert_memory_equal(text, start, sizeof start - 1);
    assert_null(strstr(text, "dtype"));
    invar_free(text);
    invar_rl_samples_reset(&samples);
}

static void test_engine_rollout_file__round_trip(void **state)
{
    invar_rl_samples samples;

    (void)state;
    make_rollout(&samples, (int)invar_test_count(6, 64), invar_test_count(200, 3000));
    round_trip(&samples);
    invar_rl_samples_reset(&samples);
    round_trip(&samples);         // an empty rollout
    make_rollout(&samples, 2, 0); // empty responses
    round_trip(&samples);
    invar_free(samples.items[1].logp); // SFT: responses that were not sampled
    invar_free(samples.items[1].mask);
    samples.items[1].logp = NULL;
    samples.items[1].mask = NULL;
    samples.items[1].finish = INVAR_FINISH_NONE;
    round_trip(&samples);
    invar_rl_samples_reset(&samples);
}

static void test_engine_rollout_file__names(void **state)
{
    char out[32];

    (void)state;
    assert_ok(invar_rollout_file_path(out, sizeof out, "a/{rollout_id}/r_{rollout_id}.jsonl", 12));
    assert_string_equal(out, "a/12/r_12.jsonl");
    assert_ok(invar_rollout_file_path(out, sizeof out, "plain", 12));
    assert_string_equal(out, "plain");
    assert_ok(invar_rollout_file_path(out, 14, "r{rollout_id}", 999999999999));
    assert_string_equal(out, "r999999999999");
    assert_fails(invar_rollout_file_path(out, 13, "r{rollout_id}", 999999999999), INVAR_E_INVALID,
                 "more than 12 bytes");
    assert_fails(invar_rollout_file_path(out, 5, "plain", 0), INVAR_E_INVALID, "more than 4");
    assert_fails(invar_rollout_file_path(out, 6, "plain{rollout_id}", 0), INVAR_E_INVALID, "more");
}

/* ---- failed writes --------------------------------------------------------------------------- */

static void test_engine_rollout_file__a_failed_write_leaves_the_old_file(void **state)
{
    invar_rollout_header header = rollout_header();
    invar_rl_samples samples;
    invar_rollout_file data;
    struct rlimit limit;

    (void)state;
    make_rollout(&samples, 4, 50);
    assert_ok(invar_rollout_file_write(path, &header, samples.items, 2));
    samples.items[2].routing[3] = 65536;
    assert_fails(invar_rollout_file_write(path, &header, samples.items, 4), INVAR_E_INVALID,
                 "sample 1002 was routed to expert 65536");
    samples.items[2].routing[3] = 0;
    samples.items[3].logp[7] = -INFINITY;
    assert_fails(invar_rollout_file_write(path, &header, samples.items, 4), INVAR_E_INVALID,
                 "not finite");
    samples.items[3].logp[7] = 0;
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &limit);
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){2000, limit.rlim_max}); // simulates a full disk
    assert_int_equal(invar_rollout_file_write(path, &header, samples.items, 4), INVAR_E_IO);
    setrlimit(RLIMIT_FSIZE, &limit);
    assert_int_equal(invar_rollout_file_write("/proc/absent/x", &header, samples.items, 4),
                     INVAR_E_NOTFOUND);
    assert_ok(invar_rollout_file_read(&data, path));
    assert_int_equal(data.samples.count, 2);
    invar_rollout_file_release(&data);
    invar_rl_samples_reset(&samples);
}

/* ---- damage ---------------------------------------------------------------------------------- */

static void test_engine_rollout_file__every_changed_bit_is_detected(void **state)
{
    invar_rollout_header header = rollout_header();
    invar_rl_samples samples;
    invar_rollout_file data;
    char *text;
    size_t bytes;
    int64_t step = invar_test_count(7, 1);

    (void)state;
    make_rollout(&samples, 2, 5);
    assert_ok(invar_rollout_file_write(path, &header, samples.items, 2));
    assert_ok(invar_file_read(&text, &bytes, path, 1 << 20));
    assert_ok(invar_rollout_file_parse(&data, "file", text, bytes)); // control: unchanged
    invar_rollout_file_release(&data);
    for (size_t bit = 0; bit < 8 * bytes; bit += (size_t)step) {
        text[bit / 8] ^= (char)(1 << bit % 8);
        assert_fails(invar_rollout_file_parse(&data, "file", text, bytes), INVAR_E_CORRUPT,
                     "file: cut off or changed");
        text[bit / 8] ^= (char)(1 << bit % 8);
    }
    for (size_t length = 0; length < bytes; length++)
        assert_fails(invar_rollout_file_parse(&data, "file", text, length), INVAR_E_CORRUPT,
                     "file: cut off or changed");
    invar_free(text);
    invar_rl_samples_reset(&samples);
}

/* Returns the text with the first `from` replaced by `to` and a valid trailer. */
static char *replace_and_sign(size_t *bytes_out, const char *text, size_t bytes, const char *from,
                              const char *to)
{
    const char *end = text + bytes - 1, *at = strstr(text, from);
    size_t head, tail, lines = 0;
    char *out;
    invar_sha256 sha;

    assert_non_null(at);
    while (end[-1] != '\n')
        end--;
    head = (size_t)(at - text);
    tail = (size_t)(end - at) - strlen(from);
    assert_ok(INVAR_ALLOC(out, bytes + strlen(to) + INVAR_ROLLOUT_FILE_TRAILER_SIZE, "text"));
    memcpy(out, text, head);
    memcpy(out + head, to, strlen(to));
    memcpy(out + head + strlen(to), at + strlen(from), tail);
    head += strlen(to) + tail;
    for (size_t i = 0; i < head; i++)
        lines += out[i] == '\n';
    invar_sha256_init(&sha);
    invar_sha256_update(&sha, out, head);
    invar_rollout_file_format_trailer(out + head, (int64_t)lines - 1, &sha);
    *bytes_out = head + strlen(out + head);
    return out;
}

static void test_engine_rollout_file__refuses_wrong_content(void **state)
{
    static const struct {
        const char *from, *to, *message;
    } cases[] = {
        {"\"version\":2", "\"version\":3", "file:1: version 3 of the format"},
        {"\"version\":2", "\"version\":1", "file:1: 13 members, 10 are known"},
        {"\"version\":2", "\"version\":\"1\"", "file:1: \"version\" is not an integer"},
        {"\"dtype\":", "\"type\":", "file:1: \"dtype\" is missing"},
        {"\"numerics\":\"", "\"numerics\":\"\\u0000", "\"numerics\" has a NUL"},
        {"\"model\":\"04", "\"model\":\"0g", "file:1: \"model\" is no hash"},
        {"invar-rollout", "invar-runout", "file:1: no rollout file"},
        {"{\"format\"", "7\n{\"format\"", "file:1: not a JSON object"},
        {"\"rollout\":3", "\"rollout\":-3", "file:1: \"rollout\" is -3"},
        {"\"run\":\"01", "\"run\":\"0g", "file:1: \"run\" is no hash"},
        {"\"run\":\"01", "\"run\":\"0", "file:1: \"run\" is no hash"},
        {"\"prompt_hash\":\"fe", "\"prompt_hash\":\"FE", "\"prompt_hash\" is no hash"},
        {"\"stop\":[", "\"stop\":null,\"stopped\":[", "value 0 of \"stop\""},
        {"\"run\":", "\"walk\":", "file:1: \"run\" is missing"},
        {"\"run\":", "\"more\":1,\"run\":", "members"},
        {"\"seed\":", "\"more\":1,\"seed\":", "members"},
        {"\"temperature\":0.7", "\"temperature\":7e38", "file:1: \"temperature\" is too large"},
        {"\"stop_ids\":[2", "\"stop_ids\":[-2", "value 0 of \"stop_ids\""},
        {"\"stop_ids\":[2,151645]", "\"stop_ids\":null", "value 0 of \"stop_ids\""},
        {"\"stop\":[\"\\n\\n\",\"</answer>\"]", "\"stop\":null", "value 0 of \"stop\""},
        {"\"stop\":[\"", "\"stop\":[\"\\u0000", "value 0 of \"stop\""},
        {"\"stop\":[\"", "\"stop\":[8,\"", "value 0 of \"stop\""},
        {"\"index\":1000", "\"index\":1001", "file:3: sample 1001 of group 500 after sample 1001"},
        {"\"group\":500", "\"group\":501", "file:3: sample 1001 of group 500 after"},
        {"\"index\":1000", "\"index\":1000,\"index\":1000", "file:2: column"},
        {"\"index\":1000", "\"index\":1000,\"x\":1", "file:2: 22 members, 21 are known"},
        {"\"draw\":0", "\"draw\":4294967296", "\"draw\" is 4294967296"},
        {"\"prompt_text\":\"", "\"prompt_text\":\"\\u0000", "\"prompt_text\" has a NUL"},
        {"\"metadata\":{}", "\"metadata\":[]", "\"metadata\" is no object"},
        {"\"prompt_tokens\":3", "\"prompt_tokens\":0", "\"prompt_tokens\" is 0"},
        {"\"prompt_tokens\":3", "\"prompt_tokens\":9", "\"prompt_tokens\" is 9"},
        {"\"prompt_tokens\":3", "\"prompt_tokens\":2", "\"logprobs\" has 5 values, expected 6"},
        {"\"tokens\":[", "\"tokens\":[2147483648,", "value 0 of \"tokens\""},
        {"\"tokens\":[", "\"tokens\":[1,", "\"logprobs\" has 5 values, expected 6"},
        {"\"logprobs\":[-0.0", "\"logprobs\":[-1e39", "value 0 of \"logprobs\""},
        {"\"logprobs\":[-0.0", "\"logprobs\":[true", "value 0 of \"logprobs\""},
        {"\"logprobs\":[-0.0", "\"logprobs\":[NaN", "file:2: column"},
        {"\"mask\":[0", "\"mask\":[2", "value 0 of \"mask\""},
        {"\"mask\":[0,", "\"mask\":[", "\"mask\" has 4 values, expected 5"},
        {"\"mask\":[0", "\"mask\":{\"0\":[0", "file:2: column"},
        {"\"route_size\":2", "\"route_size\":3", "\"routing\" has 56 digits, expected 84"},
        {"\"route_size\":2", "\"route_size\":2147483649", "\"route_size\" is 2147483649"},
        {"\"routing\":\"", "\"routing\":\"zzzz", "\"routing\" has 60 digits"},
        {"\"response\":\"", "\"response\":7,\"extra\":\"", "\"response\" is no text"},
        {"\"finish\":\"length\"", "\"finish\":\"tired\"", "value 0 of \"finish\""},
        {"\"reward\":-0.0", "\"reward\":1e999", "file:2: column"},
        {"\"removed\":false", "\"removed\":false,\"turns\":0", "\"turns\""},
        {"\"removed\":false", "\"parts\":{},\"removed\":false", "\"parts\" is no object"},
        {"\"removed\":false", "\"parts\":[1],\"removed\":false", "\"parts\" is no object"},
        {"\"removed\":false", "\"parts\":{\"a\":true},\"removed\":false", "has no number"},
        {"\"removed\":false", "\"parts\":{\"a b\":1},\"removed\":false", "cannot name a part"},
        {"\"removed\":false", "\"removed\":0", "\"removed\" is not true or false"},
        {"{\"index\":1001", "\n{\"index\":1001", "file:3: it is empty"},
    };
    invar_rollout_header header = rollout_header();
    invar_rl_samples samples;
    invar_rollout_file data;
    char *text, *forged;
    size_t bytes, forged_bytes;

    (void)state;
    make_rollout(&samples, 2, 5);
    assert_ok(invar_rollout_file_write(path, &header, samples.items, 2));
    assert_ok(invar_file_read(&text, &bytes, path, 1 << 20));
    forged = replace_and_sign(&forged_bytes, text, bytes, "\"rollout\":3", "\"rollout\":4");
    assert_ok(
        invar_rollout_file_parse(&data, "file", forged, forged_bytes)); // control: a valid change
    invar_rollout_file_release(&data);
    invar_free(forged);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        invar_status status;
        forged = replace_and_sign(&forged_bytes, text, bytes, cases[i].from, cases[i].to);
        status = invar_rollout_file_parse(&data, "file", forged, forged_bytes);
        assert_true(status == INVAR_E_CORRUPT || status == INVAR_E_UNSUPPORTED);
        invar_assert_message(cases[i].message, __FILE__, __LINE__);
        assert_int_equal(data.samples.count, 0);
        invar_free(forged);
    }
    invar_free(text);
    invar_rl_samples_reset(&samples);
}

static void test_engine_rollout_file__no_such_file(void **state)
{
    invar_rollout_file data;

    (void)state;
    assert_fails(invar_rollout_file_read(&data, "/no/such/file"), INVAR_E_NOTFOUND,
                 "/no/such/file");
    assert_fails(invar_rollout_file_read(&data, folder), INVAR_E_INVALID, "a folder");
    invar_rollout_file_release(&data);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_engine_rollout_file__round_trip),
        cmocka_unit_test(test_engine_rollout_file__keeps_version_1_without_policy),
        cmocka_unit_test(test_engine_rollout_file__names),
        cmocka_unit_test(test_engine_rollout_file__a_failed_write_leaves_the_old_file),
        cmocka_unit_test(test_engine_rollout_file__every_changed_bit_is_detected),
        cmocka_unit_test(test_engine_rollout_file__refuses_wrong_content),
        cmocka_unit_test(test_engine_rollout_file__no_such_file),
    };
    invar_rollout_header header = rollout_header();
    invar_rl_samples samples;
    int rc;

    if (argc == 2) {
        // tests of readers in other languages: writes a file and prints its log-probs as bits
        make_rollout(&samples, 4, 50);
        rc = invar_rollout_file_write(argv[1], &header, samples.items, 4) != INVAR_OK;
        for (int64_t i = 0; i < samples.count; i++) {
            for (int64_t t = 0; t < invar_rl_sample_response(&samples.items[i]); t++) {
                uint32_t bits;
                memcpy(&bits, &samples.items[i].logp[t], sizeof bits);
                printf("%08x\n", bits);
            }
        }
        invar_rl_samples_reset(&samples);
        return rc;
    }
    if (!mkdtemp(folder))
        return 1;
    snprintf(path, sizeof path, "%s/new/rollout.jsonl", folder);
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    if (invar_held_folder_remove(folder) != INVAR_OK)
        rc = 1;
    return rc;
}
