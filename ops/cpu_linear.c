/* Products of rows with a packed weight, where the processor multiplies bfloat16 itself; elsewhere
 * there is no such function.
 *
 * The weight is [panels of WIDTH columns][pairs of inputs][column][the pair's two], as oneDNN packs
 * it too. A few rows are bound by reading the weight once: each thread reads a stretch of its own
 * from front to back, and asks for what comes next while it computes with what it has.
 */
#include "cpu_vectors.h"

#ifdef __AVX512BF16__
#include <omp.h>

#define WIDTH (4 * LANES)
#define HALF (WIDTH / 2)
#define ROWS 6 /* of a tile; times four vectors of columns, that is what registers hold */
#define LINE 64

typedef struct {
    const bf16 *x;      /* [rows, inputs] */
    const bf16 *weight; /* [columns / WIDTH, inputs / 2, WIDTH, 2] */
    const bf16 *bias;   /* [columns], or none */
    bf16 *out;          /* [rows, columns] */
    int64_t rows, inputs, columns; /* columns: a multiple of WIDTH; inputs: of 2 */
} Product;

/* Rows from `row` on, times `vectors` vectors of columns from `column` on; with each pair of inputs
 * `lines` lines from `next` on are asked for. */
static inline __attribute__((always_inline)) void multiply_tile(
    const Product *p, int64_t row, const int rows, int64_t column, const int vectors,
    const char *next, const int lines) {
    const bf16 *x = p->x + row * p->inputs;
    const bf16 *weight =
        p->weight + column / WIDTH * WIDTH * p->inputs + column % WIDTH * 2;
    vf sums[ROWS][4];
    UNROLLED (int i = 0; i < rows; i++)
        UNROLLED (int v = 0; v < vectors; v++) sums[i][v] = (vf){0};
    for (int64_t at = 0; at < p->inputs; at += 2, weight += 2 * WIDTH) {
        vu part[4];
        UNROLLED (int i = 0; i < lines; i++, next += LINE) __builtin_prefetch(next, 0, 2);
        UNROLLED (int v = 0; v < vectors; v++) memcpy(part + v, weight + v * 2 * LANES, sizeof *part);
        UNROLLED (int i = 0; i < rows; i++) {
            uint32_t two;
            memcpy(&two, x + i * p->inputs + at, sizeof two);
            vu pair = two + (vu){0};
            UNROLLED (int v = 0; v < vectors; v++) sums[i][v] = add_products(sums[i][v], pair, part[v]);
        }
    }
    UNROLLED (int i = 0; i < rows; i++)
        UNROLLED (int v = 0; v < vectors; v++) {
            int64_t to = column + v * LANES;
            vf bias = p->bias ? load(p->bias + to) : (vf){0};
            store(p->out + (row + i) * p->columns + to, sums[i][v] + bias);
        }
}

/* All rows times some columns, while the weights of the columns after them are on their way, which
 * are four lines for each pair of inputs, and then the rows of the next tile. Where there is one
 * tile of rows, the processor sees by itself what comes next. */
static inline __attribute__((always_inline)) void multiply_columns(const Product *p, int64_t column,
                                                                   const int vectors) {
    int64_t full = p->rows / ROWS * ROWS, stretch = p->inputs / 2 * LINE;
    const char *next = (const char *)(p->weight + (column / WIDTH + 1) * WIDTH * p->inputs);
    int64_t row = 0;
    if (full >= 4 * ROWS)
        for (; row < 4 * ROWS; row += ROWS, next += stretch)
            multiply_tile(p, row, ROWS, column, vectors, next, 1);
    else if (p->rows > ROWS)
        for (; row < full && row < 2 * ROWS; row += ROWS, next += 2 * stretch)
            multiply_tile(p, row, ROWS, column, vectors, next, 2);
    for (; row < full; row += ROWS) {
        next = (const char *)(p->x + (row + ROWS) * p->inputs);
        multiply_tile(p, row, ROWS, column, vectors, next, 1);
    }
    switch (p->rows - full) {
#define CASE(r)                                               \
    case r:                                                   \
        multiply_tile(p, full, r, column, vectors, next, 0);  \
        break;
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5)
#undef CASE
    }
}

/* Each thread has a stretch of half panels, in which it takes whole ones where it can. */
void multiply(bf16 *out, const bf16 *x, const bf16 *weight, const bf16 *bias, int64_t rows,
              int64_t inputs, int64_t columns) {
    const Product product = {x, weight, bias, out, rows, inputs, columns}, *p = &product;
    int64_t halves = columns / HALF;
#pragma omp parallel
    {
        int64_t threads = omp_get_num_threads(), own = omp_get_thread_num();
        int64_t at = halves * own / threads, end = halves * (own + 1) / threads;
        while (at < end) {
            int is_whole = at % 2 == 0 && at + 2 <= end;
            if (is_whole)
                multiply_columns(p, at * HALF, 4);
            else
                multiply_columns(p, at * HALF, 2);
            at += 1 + is_whole;
        }
    }
}
#endif
