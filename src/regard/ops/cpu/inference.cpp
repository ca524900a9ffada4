// The specification is Transformer.step and Stack in model/transformer.py, with decoding/beams.py:
// a decoder's step with its search, and a pass of a stack over packed rows, in one call each.
//
// Every stage (a product, attention, add & norm) is split among the threads (team.h); nothing goes
// back to Python in between.
#include <omp.h>

#include "choose.h"

// The tensors of model/cache.py.
struct Cache {
    int64_t sentences, width, slots, used, window;  // window: 0 for none
    uint8_t* visible;  // [B, W, slots]
    int64_t *positions, *slot_positions, *next;  // [B], [B, slots], [W]
    const Slots *own, *memory;  // of each layer; memory may be null
    const int64_t* memory_lengths;  // [B]
};

static thread_local Room stage_room, row_room;

// All threads go through the stages, of which there are at most so many.
template <class F> static void together(long threads, long stages, const F& go_through) {
    std::vector<Counter> counters(Team::counters_for(stages, threads));
#pragma omp parallel num_threads(threads)
    {
        Team team = {counters, omp_get_thread_num(), omp_get_num_threads()};
        go_through(team);
    }
}
static long stages_of(const Stack& stack) { return 24 * (stack.layers + 1); }

// Room for what every row needs to know.
struct RowTables {
    int64_t* first;
    int32_t *position, *slot, *numbers;  // [N], [N], and slot numbers
    Seen *seen, *memory_seen;
    Piece* pieces;
    Best* best;

    RowTables(Room& room, long rows, long sentences, long numbers_count, long pieces_count,
              long best_count) {
        room.fill([&] {
            first = room.take<int64_t>(sentences + 1);
            position = room.take<int32_t>(rows);
            slot = room.take<int32_t>(rows);
            numbers = room.take<int32_t>(numbers_count);
            seen = room.take<Seen>(rows);
            memory_seen = room.take<Seen>(sentences);
            pieces = room.take<Piece>(pieces_count);
            best = room.take<Best>(best_count);
        });
    }
};

static long longest_of(const int64_t* lengths, long count) {
    return lengths ? *std::max_element(lengths, lengths + count) : 0;
}

// Hypotheses go on with their parents' slots and one of their own.
static void move(const Cache& cache, const Beams& beams, long b, RowTables& t) {
    long width = cache.width, end = cache.used + width;
    uint8_t* visible = cache.visible + b * width * cache.slots;
    int32_t* numbers = t.numbers + b * width * end;
    long now = cache.positions[b];
    for (long w = 0; w < width; w++)
        if (cache.window) cache.slot_positions[b * cache.slots + cache.used + w] = now;
    for (long w = 0; w < width; w++) {  // read all of them before any is changed
        long r = b * width + w, parent = beams.move ? beams.parents[r] : w, count = 0;
        for (long s = 0; s < cache.used; s++)
            if (visible[parent * cache.slots + s]) numbers[w * end + count++] = s;
        numbers[w * end + count++] = cache.used + w;
        t.seen[r] = {numbers + w * end, count};
        t.position[r] = now, t.slot[r] = cache.used + w;
    }
    for (long w = 0; w < width; w++) {
        Seen& seen = t.seen[b * width + w];
        memset(visible + w * cache.slots, 0, end);
        for (long i = 0; i < seen.count; i++) visible[w * cache.slots + seen.slots[i]] = 1;
        if (!cache.window) continue;
        long near = 0;  // the slots that are too far away stay visible, for what is reported of them
        int32_t* kept = numbers + w * end;
        for (long i = 0; i < seen.count; i++)
            if (now - cache.slot_positions[b * cache.slots + kept[i]] <= cache.window)
                kept[near++] = kept[i];
        seen.count = near;
    }
    cache.positions[b]++;
}

extern "C" {

int64_t block_size() { return BLOCK; }

int64_t words_in(int64_t kind, int64_t columns) { return words_of(Kind(kind), columns); }

void pack_matrix(int64_t kind, const float* weight, int64_t outputs, int64_t inputs,
                 uint32_t* tiles, int32_t* start) {
    to_blocks(Kind(kind), weight, outputs, inputs, tiles, start);
}

// Numbers from everywhere in some tensors: what training changes, it changes here, too.
uint64_t fingerprint(const uint8_t* const* tensors, const int64_t* bytes, int64_t count) {
    uint64_t hash = 14695981039346656037u;
    for (long i = 0; i < count; i++)
        for (long at = 0; at + 8 <= bytes[i]; at += std::max<long>(8, bytes[i] / 16 / 8 * 8)) {
            uint64_t part;
            memcpy(&part, tensors[i] + at, 8);
            hash = (hash ^ part) * 1099511628211u;
        }
    return hash;
}

// tokens[N] in `sentences` sequences -> hidden[N, D] (or null). `own`: where each layer's keys and
// values go, or null; memory as in a step.
void read_rows(const Stack* stack, const int64_t* tokens, const int64_t* offsets,
               int64_t sentences, int64_t causal, int64_t window, const Slots* own,
               const Slots* memory, const int64_t* memory_lengths, float* hidden,
               int64_t threads) {
    long rows = offsets[sentences], longest = 0, size = stack->head_size;
    for (long b = 0; b < sentences; b++) longest = std::max(longest, offsets[b + 1] - offsets[b]);
    long most = std::max(longest, longest_of(memory_lengths, sentences));
    RowTables t(row_room, rows, sentences, most, 0, 0);
    for (long i = 0; i < most; i++) t.numbers[i] = i;
    for (long b = 0; b < sentences; b++) {
        long length = offsets[b + 1] - offsets[b];
        if (memory_lengths) t.memory_seen[b] = {t.numbers, memory_lengths[b]};
        for (long i = 0; i < length; i++) {
            long from = window ? std::max<long>(0, i - window) : 0;
            long to = causal ? i : window ? std::min(length - 1, i + window) : length - 1;
            t.seen[offsets[b] + i] = {t.numbers + from, to - from + 1};
            t.position[offsets[b] + i] = t.slot[offsets[b] + i] = i;
        }
    }
    // Where they are not kept, all layers put keys and values in the same place.
    std::vector<float> kept;
    std::vector<Slots> same;
    if (!own) {
        long sentence = stack->heads * longest * size;
        kept.resize(2 * sentences * sentence);
        float* values = kept.data() + sentences * sentence;
        same.assign(stack->layers, {kept.data(), values, sentence, longest * size, size});
        own = same.data();
    }
    Rows all = {rows, sentences, tokens, offsets, t.position, t.slot,
                t.seen, own, memory, t.memory_seen, longest};
    Buffers b(stage_room, *stack, rows, most, longest, threads);
    together(threads, stages_of(*stack), [&](Team& team) { run_layers(team, *stack, all, b); });
    if (hidden) memcpy(hidden, b.normed, rows * stack->d_model * 4);
}

// memory[M, D] -> keys and values of every layer of the decoder.
void project_memory(const Stack* stack, const float* memory, const int64_t* offsets,
                    int64_t sentences, const Slots* slots, int64_t threads) {
    long rows = offsets[sentences], size = stack->head_size, width = stack->heads * size;
    Buffers b(stage_room, *stack, rows, 0, 0, threads);
    together(threads, stages_of(*stack), [&](Team& team) {
        for (long i = 0; i < stack->layers; i++) {
            product(team, Kind(stack->kind), stack->layer[i].key_value, memory, stack->d_model,
                    rows, b.own[team.id].prepared, b.shared, b.y, b.widest);
            team.each(sentences, [&](long s) {
                for (long r = offsets[s]; r < offsets[s + 1]; r++)
                    for (long h = 0; h < stack->heads; h++) {
                        const float* key = b.y + r * b.widest + h * size;
                        long at = slots[i].at(s, h) + (r - offsets[s]) * slots[i].slot_stride;
                        memcpy(slots[i].keys + at, key, size * 4);
                        memcpy(slots[i].values + at, key + width, size * 4);
                    }
            });
        }
    });
}

// One token more for every hypothesis: logits[N, stride] of what follows; with `advance` the search
// goes on, too. Returns how many sentences are not done.
int64_t step(const Stack* stack, const Cache* cache, const Beams* beams, float* logits,
             int64_t stride, int64_t advance, int64_t threads) {
    long sentences = cache->sentences, width = cache->width, rows = sentences * width;
    long end = cache->used + width, vocabulary = stack->output.outputs;
    long memory_longest = longest_of(cache->memory_lengths, sentences);
    long pieces = (vocabulary + PIECE - 1) / PIECE, most = beams->candidates;
    RowTables t(row_room, rows, sentences, rows * end + memory_longest, rows * pieces,
                rows * pieces * most + sentences * most);
    int32_t* counting = t.numbers + rows * end;
    for (long i = 0; i < memory_longest; i++) counting[i] = i;
    for (long b = 0; b <= sentences; b++) t.first[b] = b * width;
    for (long b = 0; b < sentences && cache->memory; b++)
        t.memory_seen[b] = {counting, cache->memory_lengths[b]};
    Rows all = {rows, sentences, beams->tokens, t.first, t.position, t.slot,
                t.seen, cache->own, cache->memory, t.memory_seen, 0};
    Buffers b(stage_room, *stack, rows, std::max(end, memory_longest), 0, threads);
    long time = *beams->time;
    together(threads, stages_of(*stack), [&](Team& team) {
        team.each(sentences, [&](long s) { move(*cache, *beams, s, t); });
        run_layers(team, *stack, all, b);
        product(team, Kind(stack->kind), stack->output, b.normed, stack->d_model, rows,
                b.own[team.id].prepared, b.shared, logits, stride);
        if (!advance) return;
        team.each(rows * pieces, [&](long piece) {
            long r = piece / pieces, start = piece % pieces * PIECE;
            bool early = time < beams->min_steps[r / width];
            t.pieces[piece] = look_through(
                logits + r * stride + start, start, std::min(PIECE, vocabulary - start),
                early ? beams->eos : -1, most, t.best + piece * most);
        });
        team.each(sentences, [&](long s) {
            grow(*beams, s, width, pieces, t.pieces + s * width * pieces,
                 t.best + s * width * pieces * most, t.best + (rows * pieces + s) * most);
        });
    });
    for (long w = 0; w < width; w++) cache->next[w] += width;
    if (!advance) return sentences;
    ++*beams->time;
    long going = 0;
    for (long s = 0; s < sentences; s++) going += !beams->done[s];
    return going;
}
}
