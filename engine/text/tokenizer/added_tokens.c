/*
 * added_tokens.c - finds added tokens in a text before it is split into words.
 *
 * A trie of bytes. Node 0 is the root, whose children are found by a table; those of other nodes
 * are in a list, which is short. The matches must be those of the tokenizers library.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/text/tokenizer/added_tokens.h"

#include <string.h>

#include "base/alloc.h"
#include "base/text.h"
#include "engine/text/unicode.h"

#include "base/invar_banned.h"

typedef struct trie_node {
    int32_t child, sibling; /* 0 if the node has none */
    int32_t id;             /* -1 if no token ends at the node */
    unsigned char byte;
    bool lstrip, rstrip, single_word;
} trie_node;

struct invar_added_tokens {
    trie_node *nodes;
    int32_t count;
    int64_t capacity;
    int32_t first[256]; /* children of the root; 0 if the root has none for the byte */
};

invar_status invar_added_tokens_new(invar_added_tokens **out)
{
    INVAR_TRY(INVAR_ALLOC_ZEROED(*out, 1, "added tokens"));
    (*out)->count = 1;
    return INVAR_OK;
}

void invar_added_tokens_free(invar_added_tokens *added)
{
    if (!added)
        return;
    invar_free(added->nodes);
    invar_free(added);
}

static int32_t find_child(const invar_added_tokens *added, int32_t at, unsigned char byte)
{
    int32_t child = at == 0 ? added->first[byte] : added->nodes[at].child;

    while (child && added->nodes[child].byte != byte)
        child = added->nodes[child].sibling;
    return child;
}

static int32_t add_child(invar_added_tokens *added, int32_t at, unsigned char byte)
{
    int32_t child = added->count++;
    int32_t *head = at == 0 ? &added->first[byte] : &added->nodes[at].child;

    added->nodes[child] = (trie_node){.sibling = *head, .id = -1, .byte = byte};
    *head = child;
    return child;
}

invar_status invar_added_tokens_add(invar_added_tokens *added, const invar_added_token *token)
{
    int32_t at = 0;
    const char *quote = INVAR_QUOTED_BYTES(INVAR_TEXT_QUOTE_SIZE, token->content, token->bytes);

    if (token->bytes == 0 || token->bytes > INVAR_ADDED_TOKEN_MAX)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "added token \"%s\" has %zu bytes, not 1 to %d",
                          quote, token->bytes, INVAR_ADDED_TOKEN_MAX);
    if (added->count > INT32_MAX / 4)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "too many added tokens");
    INVAR_TRY(INVAR_GROW(added->nodes, added->capacity, added->nodes ? added->count : 0,
                         added->count + (int64_t)token->bytes, "added tokens"));
    for (size_t i = 0; i < token->bytes; i++) {
        unsigned char byte = (unsigned char)token->content[i];
        int32_t child = find_child(added, at, byte);
        at = child ? child : add_child(added, at, byte);
    }
    if (added->nodes[at].id >= 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "added token \"%s\" exists twice", quote);
    added->nodes[at].id = token->id;
    added->nodes[at].lstrip = token->lstrip;
    added->nodes[at].rstrip = token->rstrip;
    added->nodes[at].single_word = token->single_word;
    return INVAR_OK;
}

/* Returns the node of the longest token that begins at `at`, 0 if no token does. */
static int32_t find_longest(size_t *end_out, const invar_added_tokens *added, const char *text,
                            size_t bytes, size_t at)
{
    int32_t found = 0, here = 0;

    while (at < bytes && (here = find_child(added, here, (unsigned char)text[at])) != 0) {
        at++;
        if (added->nodes[here].id >= 0) {
            found = here;
            *end_out = at;
        }
    }
    return found;
}

static bool is_space(uint32_t point)
{
    return invar_unicode_kind(point) == INVAR_CHAR_KIND_SPACE;
}

/* Returns where the character that ends at `at` begins; `at` must be greater than `floor`. */
static size_t previous_character(uint32_t *point_out, const char *text, size_t at, size_t floor)
{
    size_t back = at - 1;

    while (back > floor && ((unsigned char)text[back] & 0xC0) == 0x80)
        back--;
    if (!invar_text_utf8(point_out, text + back, at - back))
        *point_out = 0; // `floor` is inside of a character
    return back;
}

static size_t spaces_before(const char *text, size_t at, size_t floor)
{
    uint32_t point;

    while (at > floor) {
        size_t back = previous_character(&point, text, at, floor);
        if (!is_space(point))
            break;
        at = back;
    }
    return at;
}

static bool stands_alone(const char *text, size_t bytes, size_t begin, size_t end)
{
    uint32_t point;

    if (begin > 0) {
        (void)previous_character(&point, text, begin, 0);
        if (invar_unicode_is_word(point))
            return false;
    }
    return end == bytes || !invar_text_utf8(&point, text + end, bytes - end) ||
           !invar_unicode_is_word(point);
}

static size_t spaces_after(const char *text, size_t bytes, size_t at)
{
    uint32_t point;
    size_t length;

    while (at < bytes && (length = invar_text_utf8(&point, text + at, bytes - at)) > 0 &&
           is_space(point))
        at += length;
    return at;
}

bool invar_added_tokens_find(invar_added_match *out, const invar_added_tokens *added,
                             const char *text, size_t bytes, size_t from, size_t floor)
{
    size_t end = 0;

    for (size_t at = from; at < bytes; at++) {
        int32_t found =
            added->first[(unsigned char)text[at]] ? find_longest(&end, added, text, bytes, at) : 0;
        const trie_node *n = found ? &added->nodes[found] : NULL;
        if (!n)
            continue;
        if (n->single_word && !stands_alone(text, bytes, at, end)) {
            at = end - 1; // continue after the match
            continue;
        }
        out->id = n->id;
        out->begin = n->lstrip ? spaces_before(text, at, floor) : at;
        // white space before `floor` was taken by the previous match
        out->end = n->rstrip ? spaces_after(text, bytes, end > floor ? end : floor) : end;
        out->search_from = end;
        return true;
    }
    return false;
}
