/* Kernels for bfloat16 on a CPU: what a decoding step spends its time on besides matrix products.
 *
 * Each rounds to bfloat16 where its torch twin does, except attention, which stays in float32 from
 * the scores to the result. Threads are OpenMP's: the file is linked without a runtime of its own
 * and finds the one that torch has loaded. Sizes are the caller's responsibility. Attention of
 * prompts is cpu_prefill.c's.
 */
#include "cpu_vectors.h"

/* Elements below which starting the other threads costs more than it saves. */
#define WORTH_THREADS 16384

/* -- root-mean-square norm ------------------------------------------------------------------------
 * out = bf16(x / rms) * weight, where x + residual comes in place of x (and into `sum_out`) if there
 * is a residual. `width` is a multiple of LANES. */
void rms_norm(bf16 *out, bf16 *sum_out, const bf16 *x, const bf16 *residual, const bf16 *weight,
              float epsilon, int64_t rows, int64_t width) {
#pragma omp parallel for schedule(static) if (rows * width > WORTH_THREADS)
    for (int64_t row = 0; row < rows; row++) {
        const bf16 *in = x + row * width;
        vf squares = {0};
        if (residual) {
            for (int64_t i = 0; i < width; i += LANES) {
                vf both = round_to_bf16(load(in + i) + load(residual + row * width + i));
                store(sum_out + row * width + i, both);
                squares += both * both;
            }
            in = sum_out + row * width;
        } else {
            for (int64_t i = 0; i < width; i += LANES) {
                vf value = load(in + i);
                squares += value * value;
            }
        }
        float rms = __builtin_sqrtf(sum(squares) / width + epsilon);
        for (int64_t i = 0; i < width; i += LANES)
            store(out + row * width + i, round_to_bf16(load(in + i) / rms) * load(weight + i));
    }
}

/* -- gated activation -----------------------------------------------------------------------------
 * out[rows, width] = bf16(silu(x[:, :width])) * x[:, width:]; `width` is a multiple of LANES. */
void silu_and_mul(bf16 *out, const bf16 *x, int64_t rows, int64_t width) {
#pragma omp parallel for schedule(static) if (rows * width > WORTH_THREADS)
    for (int64_t row = 0; row < rows; row++) {
        const bf16 *gate = x + row * 2 * width, *up = gate + width;
        for (int64_t i = 0; i < width; i += LANES) {
            vf value = load(gate + i);
            vf activated = round_to_bf16(value / (1.0f + exponential(-value)));
            store(out + row * width + i, activated * load(up + i));
        }
    }
}

/* -- rotary positions and the cache -----------------------------------------------------------------
 * Rotates the first `heads` heads of each row of x (stride in elements) into out[rows, heads, size]:
 * pairs are halves of a head, `cosines` and signed `sines` are [rows, size]. */
void rotate(bf16 *out, const bf16 *x, int64_t stride, const bf16 *cosines, const bf16 *sines,
            int64_t rows, int64_t heads, int64_t size) {
    int64_t half = size / 2;
#pragma omp parallel for schedule(static) if (rows * heads * size > WORTH_THREADS)
    for (int64_t row = 0; row < rows; row++) {
        const bf16 *c = cosines + row * size, *s = sines + row * size;
        for (int64_t head = 0; head < heads; head++) {
            const bf16 *in = x + row * stride + head * size;
            bf16 *to = out + (row * heads + head) * size;
            for (int64_t i = 0; i < size; i += LANES) {
                const bf16 *other = in + (i < half ? i + half : i - half);
                vf turned = round_to_bf16(load(in + i) * load(c + i));
                store(to + i, turned + load(other) * load(s + i));
            }
        }
    }
}

/* Copies a step's keys or values, rows of `heads * size` elements a stride apart, into the cache
 * [blocks, 2, heads, block_size, size]; `part` is 0 for keys and 1 for values. */
void write_cache(bf16 *cache, const bf16 *from, int64_t stride, const int64_t *slots, int64_t part,
                 int64_t rows, int64_t heads, int64_t size, int64_t block_size) {
#pragma omp parallel for schedule(static) if (rows * heads * size > WORTH_THREADS)
    for (int64_t row = 0; row < rows; row++) {
        int64_t block = slots[row] / block_size, offset = slots[row] % block_size;
        for (int64_t head = 0; head < heads; head++) {
            int64_t at = ((block * 2 + part) * heads + head) * block_size + offset;
            memcpy(cache + at * size, from + row * stride + head * size, size * sizeof *from);
        }
    }
}

/* -- attention of one new token a sequence ----------------------------------------------------------
 * Each sequence's positions are cut into parts of SPLIT, the same ones whoever else is in the batch;
 * the parts are attended to apart, with a maximum and a sum of their own, and joined.
 */
#define SPLIT 256
#define MAX_GROUP 8
#define MAX_PAIRS 8

typedef struct {
    const bf16 *query;      /* [sequences, kv_heads, group, size], sequences `query_stride` apart */
    const bf16 *cache;      /* [blocks, 2, kv_heads, block_size, size] */
    const int64_t *tables;  /* [sequences, table_stride]: blocks */
    const int64_t *lengths; /* [sequences] */
    float *scratch;         /* [sequences, kv_heads, parts, group, size + 2] */
    bf16 *out;              /* [sequences, kv_heads, group, size] */
    int64_t sequences, kv_heads, group, size, block_size, table_stride, query_stride;
    int64_t parts;  /* of the longest sequence */
    int64_t window; /* positions that a token sees, itself the last; 0: all */
    float scale, cap;
} Decode;

/* Where a head's part of the keys (twice the block) or of the values (one more) begins. */
static inline const bf16 *page(const Decode *d, int64_t half_block, int64_t head) {
    return d->cache + (half_block * d->kv_heads + head) * d->block_size * d->size;
}

/* One load of 32 elements gives two vectors, of those at even and at odd places: cheaper than
 * spreading them in order, and products do not mind. */
typedef struct {
    vf even, odd;
} pair;

static inline pair load_pair(const bf16 *from) {
    vu both;
    memcpy(&both, from, sizeof both);
    return (pair){(vf)(both << 16), (vf)(both & 0xffff0000)};
}

/* The scores of `group` heads with the keys of positions [begin, end). */
static inline __attribute__((always_inline)) void score_part(
    const Decode *d, const int64_t *table, const bf16 *q, int64_t head, int64_t begin, int64_t end,
    const int group, const int pairs, float (*scores)[SPLIT + 4]) {
    vu queries[MAX_GROUP][MAX_PAIRS];
    UNROLLED (int j = 0; j < group; j++)
        UNROLLED (int v = 0; v < pairs; v++)
            memcpy(&queries[j][v], q + (j * pairs + v) * 2 * LANES, sizeof **queries);
    const int size = pairs * 2 * LANES;
    for (int64_t at = begin; at < end;) {
        int64_t block = at / d->block_size, stop = (block + 1) * d->block_size;
        const bf16 *key = page(d, table[block] * 2, head) + (at % d->block_size) * size;
        const bf16 *next = stop < end ? page(d, table[block + 1] * 2, head) : key;
        if (stop > end) stop = end;
        for (; at < stop; at += 4, key += 4 * size, next += 4 * size) {
            vf products[4][MAX_GROUP];
            UNROLLED (int i = 0; i < 4; i++) {
                const bf16 *from = at + i < stop ? key + i * size : key;
                UNROLLED (int v = 0; v < pairs; v++) {
                    vu k;
                    memcpy(&k, from + v * 2 * LANES, sizeof k);
                    __builtin_prefetch(next + i * size + v * 2 * LANES);
                    UNROLLED (int j = 0; j < group; j++)
                        products[i][j] =
                            add_products(v ? products[i][j] : (vf){0}, queries[j][v], k);
                }
            }
            UNROLLED (int j = 0; j < group; j++) {
                v4 four = sum4(products[0][j], products[1][j], products[2][j], products[3][j]);
                four *= d->scale;
                memcpy(scores[j] + at - begin, &four, sizeof four);
            }
        }
        at = stop;
    }
}

/* From scores to weights: the largest score and the weights' sum go to `result`. */
static inline void weigh_part(const Decode *d, float *row, int64_t count, float *result) {
    int64_t padded = (count + LANES - 1) / LANES * LANES;
    vf highest = broadcast(-__builtin_inff()), weights = {0};
    for (int64_t i = count; i < padded; i++) row[i] = -__builtin_inff();
    for (int64_t i = 0; i < padded; i += LANES) {
        vf part;
        memcpy(&part, row + i, sizeof part);
        if (d->cap > 0) {
            part = choose(part == -__builtin_inff(), part, capped(part, d->cap));
            memcpy(row + i, &part, sizeof part);
        }
        highest = choose(part <= highest, highest, part);
    }
    float top = highest[0];
    for (int i = 1; i < LANES; i++)
        if (!(highest[i] <= top)) top = highest[i];
    for (int64_t i = 0; i < padded; i += LANES) {
        vf part;
        memcpy(&part, row + i, sizeof part);
        part = exponential(part - top);
        memcpy(row + i, &part, sizeof part);
        weights += i + LANES <= count ? part : (vf){0};
    }
    float rest = sum(weights);
    for (int64_t i = count / LANES * LANES; i < count; i++) rest += row[i];
    result[0] = top;
    result[1] = rest;
}

/* The values of positions [begin, end), weighted, as `result[group][2 + size]` has room for. */
static inline __attribute__((always_inline)) void add_part(
    const Decode *d, const int64_t *table, int64_t head, int64_t begin, int64_t end,
    const int group, const int pairs, float (*weights)[SPLIT + 4], float *result) {
    vf even[MAX_GROUP][MAX_PAIRS], odd[MAX_GROUP][MAX_PAIRS];
    UNROLLED (int j = 0; j < group; j++)
        UNROLLED (int v = 0; v < pairs; v++) even[j][v] = odd[j][v] = (vf){0};
    for (int64_t at = begin; at < end;) {
        int64_t block = at / d->block_size, stop = (block + 1) * d->block_size;
        const bf16 *value = page(d, table[block] * 2 + 1, head) + (at % d->block_size) * d->size;
        const bf16 *next = stop < end ? page(d, table[block + 1] * 2 + 1, head) : value;
        if (stop > end) stop = end;
        for (; at < stop; at++, value += pairs * 2 * LANES, next += pairs * 2 * LANES)
            UNROLLED (int v = 0; v < pairs; v++) {
                pair x = load_pair(value + v * 2 * LANES);
                __builtin_prefetch(next + v * 2 * LANES);
                UNROLLED (int j = 0; j < group; j++) {
                    even[j][v] += weights[j][at - begin] * x.even;
                    odd[j][v] += weights[j][at - begin] * x.odd;
                }
            }
    }
    UNROLLED (int j = 0; j < group; j++)
        UNROLLED (int v = 0; v < pairs; v++) {
            float *to = result + j * (d->size + 2) + 2 + v * 2 * LANES;
            vf first = even[j][v], second = odd[j][v];
            memcpy(to, &first, sizeof first);
            memcpy(to + LANES, &second, sizeof second);
        }
}

static inline __attribute__((always_inline)) void attend_part(
    const Decode *d, int64_t sequence, int64_t head, int64_t begin, int64_t end, int64_t first,
    const int group, const int pairs, float *result) {
    /* What the loops over them are compiled for where they are no constants. */
    if (group < 1 || group > MAX_GROUP || pairs < 1 || pairs > MAX_PAIRS) __builtin_unreachable();
    float scores[MAX_GROUP][SPLIT + 4]; /* four are written at a time */
    const int64_t *table = d->tables + sequence * d->table_stride;
    const bf16 *q = d->query + sequence * d->query_stride + (head * d->group + first) * d->size;
    score_part(d, table, q, head, begin, end, group, pairs, scores);
    for (int j = 0; j < group; j++)
        weigh_part(d, scores[j], end - begin, result + j * (d->size + 2));
    add_part(d, table, head, begin, end, group, pairs, scores, result);
}

/* Constant sizes, where they are known, keep everything in registers. Each has a function of its
 * own: all of them in one take the compiler four times as long. */
#define KNOWN_SIZES(f) f(1, 2) f(2, 2) f(3, 2) f(4, 2) f(1, 4) f(2, 4) f(4, 4)
#define ATTEND(name, group, pairs, ...)                                                          \
    static __attribute__((noinline)) void name(const Decode *d, int64_t sequence, int64_t head,  \
                                               int64_t begin, int64_t end, int64_t first,        \
                                               ##__VA_ARGS__, float *result) {                   \
        attend_part(d, sequence, head, begin, end, first, group, pairs, result);                 \
    }
#define DEFINE(g, p) ATTEND(attend_##g##_##p, g, p)
KNOWN_SIZES(DEFINE)
ATTEND(attend_any, group, pairs, int group, int pairs)

static void attend_heads(const Decode *d, int64_t sequence, int64_t head, int64_t begin,
                         int64_t end, float *result) {
    int pairs = d->size / (2 * LANES);
    for (int64_t first = 0; first < d->group; first += MAX_GROUP) {
        int group = d->group - first < MAX_GROUP ? d->group - first : MAX_GROUP;
        float *to = result + first * (d->size + 2);
#define CALL(g, p)                                                              \
    if (group == g && pairs == p) {                                             \
        attend_##g##_##p(d, sequence, head, begin, end, first, to);             \
        continue;                                                               \
    }
        KNOWN_SIZES(CALL)
        attend_any(d, sequence, head, begin, end, first, group, pairs, to);
    }
}

static void join_parts(const Decode *d, int64_t sequence, int64_t head, int64_t from, int64_t to) {
    int64_t row = d->size + 2, part = d->group * row;
    const float *parts = d->scratch + (sequence * d->kv_heads + head) * d->parts * part;
    bf16 *out = d->out + (sequence * d->kv_heads + head) * d->group * d->size;
    for (int64_t j = 0; j < d->group; j++) {
        float highest = -__builtin_inff(), weights = 0;
        for (int64_t p = from; p < to; p++)
            if (!(parts[p * part + j * row] <= highest)) highest = parts[p * part + j * row];
        for (int64_t p = from; p < to; p++)
            weights += parts[p * part + j * row + 1] *
                       exponential(broadcast(parts[p * part + j * row] - highest))[0];
        for (int64_t i = 0; i < d->size; i += 2 * LANES) {
            vf even = {0}, odd = {0}, first, second;
            for (int64_t p = from; p < to; p++) {
                const float *values = parts + p * part + j * row;
                vf weight = exponential(broadcast(values[0] - highest));
                memcpy(&first, values + 2 + i, sizeof first);
                memcpy(&second, values + 2 + i + LANES, sizeof second);
                even += first * weight;
                odd += second * weight;
            }
            vu low = __builtin_convertvector(narrow(even / weights), vu);
            vu both = low | __builtin_convertvector(narrow(odd / weights), vu) << 16;
            memcpy(out + j * d->size + i, &both, sizeof both);
        }
    }
}

void attend_decode(const Decode *d) {
    int64_t heads = d->sequences * d->kv_heads, units = heads * d->parts;
#pragma omp parallel if (units > 1)
    {
#pragma omp for schedule(dynamic, 1)
        for (int64_t unit = 0; unit < units; unit++) {
            int64_t part = unit % d->parts, head = unit / d->parts;
            int64_t sequence = head / d->kv_heads;
            int64_t length = d->lengths[sequence];
            int64_t start = d->window && d->window < length ? length - d->window : 0;
            int64_t begin = part * SPLIT, end = begin + SPLIT;
            if (begin < start) begin = start;
            if (end > length) end = length;
            if (begin < end)
                attend_heads(d, sequence, head % d->kv_heads, begin, end,
                             d->scratch + unit * d->group * (d->size + 2));
        }
#pragma omp for schedule(static)
        for (int64_t head = 0; head < heads; head++) {
            int64_t length = d->lengths[head / d->kv_heads];
            int64_t start = d->window && d->window < length ? length - d->window : 0;
            join_parts(d, head / d->kv_heads, head % d->kv_heads, start / SPLIT,
                       (length + SPLIT - 1) / SPLIT);
        }
    }
}
