/*
 * user_facts.c - tests of the parser of user facts (INVAR_FACTS).
 *
 * Valid texts are compared field by field, rejected ones must name the reason, and each limit is
 * tested at the limit and one above it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/run/identity/user_facts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support.h"

static invar_status parse_text(invar_user_facts *out, const char *text)
{
    return invar_user_facts_parse(out, text, strlen(text));
}

static void check_fact(const invar_user_facts *facts, size_t i, const char *scope, const char *key,
                       const char *value)
{
    assert_true(i < facts->count);
    assert_string_equal(facts->items[i].scope, scope);
    assert_string_equal(facts->items[i].key, key);
    assert_string_equal(facts->items[i].value, value);
}

static void test_user_facts__valid(void **state)
{
    invar_user_facts facts;

    (void)state;
    assert_ok(parse_text(&facts, ""));
    assert_int_equal(facts.count, 0);
    invar_user_facts_release(&facts);
    assert_ok(parse_text(&facts, "ab.side=a"));
    check_fact(&facts, 0, "ab", "side", "a");
    invar_user_facts_release(&facts);
    assert_ok(parse_text(&facts,
                         "ab.seed=1\nci.case=a.b=c\nbisect.key-2=\nuser.K_9=gr\xc3\xbc\xc3\x9f\n"));
    assert_int_equal(facts.count, 4);
    check_fact(&facts, 0, "ab", "seed", "1");
    check_fact(&facts, 1, "ci", "case", "a.b=c");
    check_fact(&facts, 2, "bisect", "key-2", "");
    check_fact(&facts, 3, "user", "K_9", "gr\xc3\xbc\xc3\x9f");
    invar_user_facts_release(&facts);
    assert_int_equal(facts.count, 0);
}

static void test_user_facts__rejected(void **state)
{
    static const char *const cases[][2] = {{"\n", "line 1"},
                                           {"ab.side=a\n\nab.seed=1", "line 2"},
                                           {"side=a", "SCOPE.KEY=VALUE"},
                                           {"ab.side", "SCOPE.KEY=VALUE"},
                                           {"ab=a.b", "SCOPE.KEY=VALUE"},
                                           {"build.commit=1", "scope is one of"},
                                           {" ab.side=a", "scope is one of"},
                                           {"AB.side=a", "scope is one of"},
                                           {".side=a", "scope is one of"},
                                           {"ab.=a", "a key has"},
                                           {"ab.si de=a", "a key has"},
                                           {"ab.si.de=a", "a key has"},
                                           {"ab.side=\t", "printable"},
                                           {"ab.side=a\r\n", "printable"},
                                           {"ab.side=\xff", "printable"},
                                           {"ab.side=\xe2\x80\xae", "printable"},
                                           {"ab.side=a\nab.side=b", "was there before"}};
    invar_user_facts facts;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_fails(parse_text(&facts, cases[i][0]), INVAR_E_INVALID, cases[i][1]);
        assert_int_equal(facts.count, 0);
        assert_null(facts.memory);
    }
    assert_fails(invar_user_facts_parse(&facts, "ab.side=a\0b", 11), INVAR_E_INVALID, "NUL");
}

static void test_user_facts__limits(void **state)
{
    char text[65 * 16 + 1], *large = malloc(INVAR_USER_FACTS_BYTES + 2);
    char key[80];
    size_t used = 0;
    invar_user_facts facts;

    (void)state;
    for (int i = 0; i < 65; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "user.k%d=v\n", i);
    assert_fails(parse_text(&facts, text), INVAR_E_INVALID, "more than 64");
    text[strlen(text) - strlen("user.k64=v\n")] = '\0';
    assert_ok(parse_text(&facts, text));
    assert_int_equal(facts.count, 64);
    invar_user_facts_release(&facts);
    (void)snprintf(key, sizeof key, "user.%.*s=v", INVAR_USER_FACTS_KEY,
                   "kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk");
    assert_ok(parse_text(&facts, key));
    invar_user_facts_release(&facts);
    (void)snprintf(key, sizeof key, "user.%.*s=v", INVAR_USER_FACTS_KEY + 1,
                   "kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk");
    assert_fails(parse_text(&facts, key), INVAR_E_INVALID, "a key has");
    memset(large, 'x', INVAR_USER_FACTS_BYTES + 1);
    memcpy(large, "user.k=", 7);
    assert_fails(invar_user_facts_parse(&facts, large, INVAR_USER_FACTS_BYTES + 1), INVAR_E_INVALID,
                 "bytes");
    assert_ok(invar_user_facts_parse(&facts, large, INVAR_USER_FACTS_BYTES));
    invar_user_facts_release(&facts);
    free(large);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_user_facts__valid),
        cmocka_unit_test(test_user_facts__rejected),
        cmocka_unit_test(test_user_facts__limits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
