/* Attention of a prompt's tokens over a paged cache, for bfloat16 on a CPU.
 *
 * Scores stand as [keys, queries]: a vector holds one key's scores with sixteen queries, so that
 * keys are read as they lie, and maxima and sums of the softmax need no sums across a vector. Keys
 * are taken TILE at a time, and what was summed before is scaled as larger scores turn up (the
 * "online" softmax of arXiv:1805.02867, in tiles as in arXiv:2205.14135). Scores, maxima and sums
 * are float32; a weight is rounded to bfloat16 for its product with the values.
 */
#include "cpu_vectors.h"

#define QUERIES (2 * LANES) /* rows of a tile: tokens times the heads that share keys */
#define TILE 64             /* keys of a tile, a multiple of KEYS */
#define KEYS 8              /* keys, or elements of values, whose sums are in registers at a time */
#define MAX_SIZE 256
#define HIDDEN (-__builtin_inff())
#define LEAST (-1e30f) /* below every score, and still a number to subtract from */

typedef struct {
    const bf16 *query; /* [tokens, kv_heads, group, size], tokens `query_stride` apart */
    const bf16 *cache; /* [blocks, 2, kv_heads, block_size, size] */
    const int64_t *table;
    bf16 *out;         /* [tokens, kv_heads, group, size] */
    int64_t tokens;    /* the last ones of `length` */
    int64_t length, kv_heads, group, size, block_size, query_stride;
    int64_t window; /* positions that a token sees, itself the last; 0: all */
    float scale, cap;
} Prefill;

/* What a thread holds of a tile of queries and of one of keys. Pairs are two bfloat16 numbers. */
typedef struct {
    vu queries[MAX_SIZE / 2][2]; /* [pair of elements, query] */
    vf sums[MAX_SIZE][2];        /* [element, query]: the weighted values */
    vf scores[TILE][2];          /* [key, query] */
    vu weights[TILE / 2][2];     /* [pair of keys, query] */
    uint32_t keys[TILE * MAX_SIZE / 2];   /* [key, pair of elements] */
    uint32_t values[TILE / 2 * MAX_SIZE]; /* [pair of keys, element] */
    vf highest[2], weight_sums[2];
    vi positions[2]; /* of the queries */
} Tile;

/* Thirty-two numbers, and which of two such vectors' make pairs from place `f` on. */
typedef uint16_t vhh __attribute__((vector_size(4 * LANES)));
#define TWO(i) (i), (i) + 32
#define EACH(f)                                                                                \
    TWO(f), TWO(f + 1), TWO(f + 2), TWO(f + 3), TWO(f + 4), TWO(f + 5), TWO(f + 6), TWO(f + 7), \
        TWO(f + 8), TWO(f + 9), TWO(f + 10), TWO(f + 11), TWO(f + 12), TWO(f + 13),             \
        TWO(f + 14), TWO(f + 15)

static inline vu spread(uint32_t x) { return x + (vu){0}; }

/* The rows of a square of sixteen become its columns. */
static inline void transpose(vu *x) {
#define STEP(distance, low, high)                                    \
    for (int i = 0; i < LANES; i++)                                  \
        if (!(i & distance)) {                                       \
            vu a = x[i], b = x[i + distance];                        \
            x[i] = __builtin_shufflevector(a, b, low);               \
            x[i + distance] = __builtin_shufflevector(a, b, high);   \
        }
#define L(...) __VA_ARGS__
    STEP(8, L(0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23),
         L(8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31))
    STEP(4, L(0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27),
         L(4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31))
    STEP(2, L(0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29),
         L(2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31))
    STEP(1, L(0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30),
         L(1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31))
#undef L
#undef STEP
}

/* Rows [first, end) of a head's queries, those beyond the end zero. */
static void take_queries(const Prefill *p, int64_t head, int64_t first, int64_t end, Tile *t) {
    for (int part = 0; part < 2; part++) {
        const bf16 *rows[LANES];
        for (int i = 0; i < LANES; i++) {
            int64_t row = first + part * LANES + i, token = row / p->group;
            if (row >= end) token = p->tokens - 1;
            t->positions[part][i] = p->length - p->tokens + token;
            rows[i] = row < end ? p->query + token * p->query_stride +
                                      (head * p->group + row % p->group) * p->size
                                : 0;
        }
        for (int64_t at = 0; at < p->size / 2; at += LANES) {
            vu square[LANES];
            for (int i = 0; i < LANES; i++) {
                square[i] = (vu){0};
                if (rows[i]) memcpy(square + i, rows[i] + 2 * at, sizeof *square);
            }
            transpose(square);
            for (int i = 0; i < LANES; i++) t->queries[at + i][part] = square[i];
        }
        t->highest[part] = broadcast(LEAST);
        t->weight_sums[part] = (vf){0};
    }
    for (int64_t i = 0; i < p->size; i++) t->sums[i][0] = t->sums[i][1] = (vf){0};
}

/* Keys and values of positions [begin, end), zero up to the whole tile; two keys' values become
 * pairs. */
static void take_keys(const Prefill *p, int64_t head, int64_t begin, int64_t end, Tile *t) {
    int64_t size = p->size, part = p->kv_heads * p->block_size * size;
    for (int64_t i = 0; i < TILE; i += 2) {
        const bf16 *at[2] = {0, 0};
        for (int64_t j = 0; j < 2 && begin + i + j < end; j++) {
            int64_t position = begin + i + j, block = p->table[position / p->block_size];
            int64_t row = head * p->block_size + position % p->block_size;
            at[j] = p->cache + block * 2 * part + row * size;
        }
        for (int64_t j = 0; j < 2; j++) {
            uint32_t *to = t->keys + (i + j) * size / 2;
            if (at[j])
                memcpy(to, at[j], size * sizeof *at[j]);
            else
                memset(to, 0, size * sizeof *at[j]);
        }
        uint32_t *to = t->values + i / 2 * size;
        for (int64_t e = 0; e < size; e += 2 * LANES, to += 2 * LANES) {
            vhh first = {0}, second = {0};
            if (at[0]) memcpy(&first, at[0] + part + e, sizeof first);
            if (at[1]) memcpy(&second, at[1] + part + e, sizeof second);
            vhh low = __builtin_shufflevector(first, second, EACH(0)),
                high = __builtin_shufflevector(first, second, EACH(16));
            memcpy(to, &low, sizeof low);
            memcpy(to + LANES, &high, sizeof high);
        }
    }
}

/* The scores of the tile's queries with `count` keys, not scaled. */
static inline __attribute__((always_inline)) void score(Tile *t, int64_t count, const int64_t pairs) {
    for (int64_t first = 0; first < count; first += KEYS) {
        const uint32_t *keys = t->keys + first * pairs;
        vf sums[KEYS][2];
        UNROLLED (int i = 0; i < KEYS; i++) sums[i][0] = sums[i][1] = (vf){0};
        for (int64_t at = 0; at < pairs; at++) {
            vu left = t->queries[at][0], right = t->queries[at][1];
            UNROLLED (int i = 0; i < KEYS; i++) {
                vu key = spread(keys[i * pairs + at]);
                sums[i][0] = add_products(sums[i][0], left, key);
                sums[i][1] = add_products(sums[i][1], right, key);
            }
        }
        memcpy(t->scores + first, sums, sizeof sums);
    }
}

/* From products to scores where they are capped, or hidden from a query that does not see the key.
 */
static void finish_scores(const Prefill *p, int64_t begin, int64_t count, int is_partly_hidden,
                          int part, Tile *t) {
    vi own = t->positions[part];
    vi oldest = own - (p->window ? (int32_t)p->window : INT32_MAX);
    for (int64_t i = 0; i < count; i++) {
        vf s = t->scores[i][part];
        if (p->cap > 0) s = capped(s * p->scale, p->cap);
        if (is_partly_hidden) {
            vi position = (int32_t)(begin + i) + (vi){0};
            s = choose((position <= own) & (position > oldest), s, broadcast(HIDDEN));
        }
        t->scores[i][part] = s;
    }
}

/* 2^x for x <= 0, relative error below 3e-6, and as at -126 for what is less; what is not a number
 * stays so. */
static inline vf power_of_two(vf x) {
    const vf magic = broadcast(12582912.0f); /* 1.5 * 2^23: adding it rounds to an integer */
    x = larger(broadcast(-126.0f), x);
    vf n = x + magic;
    vf r = x - (n - magic);
    vf p = broadcast(9.570102207e-3f);
    p = p * r + 5.591785908e-2f;
    p = p * r + 2.402474433e-1f;
    p = p * r + 6.931217909e-1f;
    p = p * r + 9.999992847e-1f;
    return (vf)((vu)p + ((vu)n << 23));
}

/* Two vectors as bfloat16, in pairs. Neither is negative. */
static inline vu pair_up(vf low, vf high) {
#ifdef __AVX512BF16__
    vhh both = (vhh)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
#define BOTH(i) (i), (i) + 16
    return (vu)__builtin_shufflevector(both, both, BOTH(0), BOTH(1), BOTH(2), BOTH(3), BOTH(4),
                                       BOTH(5), BOTH(6), BOTH(7), BOTH(8), BOTH(9), BOTH(10),
                                       BOTH(11), BOTH(12), BOTH(13), BOTH(14), BOTH(15));
#undef BOTH
#else
    return __builtin_convertvector(narrow(low), vu) | __builtin_convertvector(narrow(high), vu) << 16;
#endif
}

/* From scores to weights, and what was summed before to the same scale. */
static void weigh(const Prefill *p, int64_t count, int is_partly_hidden, int part, Tile *t) {
    const float to_power = (p->cap > 0 ? 1.0f : p->scale) * 1.44269504088896341f;
    vf before = t->highest[part], highest = before, weights = {0};
    for (int64_t i = 0; i < count; i++) highest = larger(highest, t->scores[i][part]);
    vf least = highest * to_power;
    for (int64_t i = 0; i < count; i += 2) {
        vf pair[2];
        UNROLLED (int j = 0; j < 2; j++) {
            vf s = t->scores[i + j][part];
            pair[j] = power_of_two(s * to_power - least);
            if (is_partly_hidden) pair[j] = choose(s == HIDDEN, (vf){0}, pair[j]);
            weights += pair[j];
        }
        t->weights[i / 2][part] = pair_up(pair[0], pair[1]);
    }
    vf scale = power_of_two((before - highest) * to_power);
    t->highest[part] = highest;
    t->weight_sums[part] = t->weight_sums[part] * scale + weights;
    for (int64_t i = 0; i < p->size; i++) t->sums[i][part] *= scale;
}

/* Adds the values of `pairs` pairs of keys, weighted. */
static inline __attribute__((always_inline)) void add_values(Tile *t, int64_t pairs,
                                                             const int64_t size) {
    for (int64_t first = 0; first < size; first += KEYS) {
        vf sums[KEYS][2];
        memcpy(sums, t->sums + first, sizeof sums);
        for (int64_t at = 0; at < pairs; at++) {
            const uint32_t *values = t->values + at * size + first;
            vu left = t->weights[at][0], right = t->weights[at][1];
            UNROLLED (int i = 0; i < KEYS; i++) {
                vu value = spread(values[i]);
                sums[i][0] = add_products(sums[i][0], left, value);
                sums[i][1] = add_products(sums[i][1], right, value);
            }
        }
        memcpy(t->sums + first, sums, sizeof sums);
    }
}

static void give_sums(const Prefill *p, int64_t head, int64_t first, int64_t end, Tile *t) {
    for (int part = 0; part < 2; part++)
        for (int64_t at = 0; at < p->size; at += LANES) {
            vu square[LANES];
            for (int i = 0; i < LANES; i++)
                square[i] = (vu)(t->sums[at + i][part] / t->weight_sums[part]);
            transpose(square);
            for (int64_t i = 0, row = first + part * LANES; i < LANES && row < end; i++, row++) {
                int64_t token = row / p->group, own = head * p->group + row % p->group;
                bf16 *to = p->out + (token * p->kv_heads * p->group + own) * p->size;
                store(to + at, (vf)square[i]);
            }
        }
}

static void attend_tile(const Prefill *p, int64_t head, int64_t first, Tile *t) {
    int64_t rows = p->tokens * p->group, start = p->length - p->tokens;
    int64_t end = first + QUERIES < rows ? first + QUERIES : rows;
    int64_t first_own = start + first / p->group, last_own = start + (end - 1) / p->group;
    int64_t begin = p->window && first_own >= p->window ? first_own - p->window + 1 : 0;
    take_queries(p, head, first, end, t);
    for (; begin <= last_own; begin += TILE) {
        int64_t stop = begin + TILE <= last_own ? begin + TILE : last_own + 1;
        int64_t count = (stop - begin + KEYS - 1) / KEYS * KEYS;
        int is_partly_hidden =
            begin + count - 1 > first_own || (p->window && begin <= last_own - p->window);
        take_keys(p, head, begin, stop, t);
        if (p->size == 64)
            score(t, count, 32);
        else
            score(t, count, p->size / 2);
        for (int part = 0; part < 2; part++) {
            if (is_partly_hidden || p->cap > 0)
                finish_scores(p, begin, count, is_partly_hidden, part, t);
            weigh(p, count, is_partly_hidden, part, t);
        }
        if (p->size == 64)
            add_values(t, count / 2, 64);
        else
            add_values(t, count / 2, p->size);
    }
    give_sums(p, head, first, end, t);
}

/* The last tiles see most and come first. */
void attend_prefill(const Prefill *p) {
    int64_t tiles = (p->tokens * p->group + QUERIES - 1) / QUERIES, units = tiles * p->kv_heads;
#pragma omp parallel if (units > 1)
    {
        Tile tile;
#pragma omp for schedule(dynamic, 1)
        for (int64_t unit = 0; unit < units; unit++)
            attend_tile(p, unit % p->kv_heads, (tiles - 1 - unit / p->kv_heads) * QUERIES, &tile);
    }
}
