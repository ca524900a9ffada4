// The specification is Transformer.step and Stack in model/transformer.py, with decoding/beams.py:
// one call runs a decoding step with its search, or a full pass of a stack over packed rows.
//
// Each stage (a product, attention, add & norm) is split among the threads (team.h), without calls
// of Python in between.
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

static thread_local Workspace stage_workspace, row_workspace;

// Runs `run_stages` in all threads; `stages` is an upper bound of the number of stages.
template <class F> static void run_team(long threads, long stages, const F& run_stages) {
    std::vector<Counter> counters(Team::counters_for(stages, threads));
#pragma omp parallel num_threads(threads)
    {
        Team team = {counters, omp_get_thread_num(), omp_get_num_threads()};
        run_stages(team);
    }
}
static long stages_of(const Stack& stack) { return 24 * (stack.layers + 1); }

// Tables of the rows of a call.
struct RowTables {
    int64_t* first;
    int32_t *position, *slot, *numbers;  // [N], [N], and slot numbers
    Seen *seen, *memory_seen;
    Piece* pieces;
    Best* best;

    RowTables(Workspace& workspace, long rows, long sentences, long numbers_count,
              long pieces_count, long best_count) {
        workspace.fill([&] {
            first = workspace.allocate<int64_t>(sentences + 1);
            position = workspace.allocate<int32_t>(rows);
            slot = workspace.allocate<int32_t>(rows);
            numbers = workspace.allocate<int32_t>(numbers_count);
            seen = workspace.allocate<Seen>(rows);
            memory_seen = workspace.allocate<Seen>(sentences);
            pieces = workspace.allocate<Piece>(pieces_count);
            best = workspace.allocate<Best>(best_count);
        });
    }
};

static long longest_of(const int64_t* lengths, long count) {
    return lengths ? *std::max_element(lengths, lengths + count) : 0;
}

// Each hypothesis sees the slots of its parent and one new slot.
static void move_hypotheses(const Cache& cache, const Beams& beams, long b, RowTables& t) {
    long width = cache.width, end = cache.used + width;
    uint8_t* visible = cache.visible + b * width * cache.slots;
    int32_t* numbers = t.numbers + b * width * end;
    long now = cache.positions[b];
    for (long w = 0; w < width; w++)
        if (cache.window) cache.slot_positions[b * cache.slots + cache.used + w] = now;
    for (long w = 0; w < width; w++) {  // read all rows before any is changed
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
        long count = 0;  // slots beyond the window stay in `visible`, but are not read
        int32_t* read = numbers + w * end;
        for (long i = 0; i < seen.count; i++)
            if (now - cache.slot_positions[b * cache.slots + read[i]] <= cache.window)
                read[count++] = read[i];
        seen.count = count;
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

// A hash of samples from all parts of the tensors, which changes when training changes them.
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

// tokens[N] in `sentences` sequences -> hidden[N, D] (or null). `own`: the slots of the keys and
// values of each layer, or null; memory as in a step.
void read_rows(const Stack* stack, const int64_t* tokens, const int64_t* offsets,
               int64_t sentences, int64_t causal, int64_t window, const Slots* own,
               const Slots* memory, const int64_t* memory_lengths, float* hidden,
               int64_t threads) {
    long rows = offsets[sentences], longest = 0, size = stack->head_size;
    for (long b = 0; b < sentences; b++) longest = std::max(longest, offsets[b + 1] - offsets[b]);
    long max_slots = std::max(longest, longest_of(memory_lengths, sentences));
    RowTables t(row_workspace, rows, sentences, max_slots, 0, 0);
    for (long i = 0; i < max_slots; i++) t.numbers[i] = i;
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
    // If the caller does not need keys and values, all layers use the same memory for them.
    std::vector<float> storage;
    std::vector<Slots> shared_slots;
    if (!own) {
        long sentence = stack->heads * longest * size;
        storage.resize(2 * sentences * sentence);
        float* values = storage.data() + sentences * sentence;
        shared_slots.assign(stack->layers,
                            {storage.data(), values, sentence, longest * size, size});
        own = shared_slots.data();
    }
    Rows all = {rows, sentences, tokens, offsets, t.position, t.slot,
                t.seen, own, memory, t.memory_seen, longest};
    Buffers b(stage_workspace, *stack, rows, max_slots, longest, threads);
    run_team(threads, stages_of(*stack), [&](Team& team) { run_layers(team, *stack, all, b); });
    if (hidden) memcpy(hidden, b.normed, rows * stack->d_model * 4);
}

// memory[M, D] -> keys and values of every layer of the decoder.
void project_memory(const Stack* stack, const float* memory, const int64_t* offsets,
                    int64_t sentences, const Slots* slots, int64_t threads) {
    long rows = offsets[sentences], size = stack->head_size, width = stack->heads * size;
    Buffers b(stage_workspace, *stack, rows, 0, 0, threads);
    run_team(threads, stages_of(*stack), [&](Team& team) {
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

// Runs one step: logits[N, stride] of the next token of each hypothesis; with `advance` also the
// step of the search. Returns the number of unfinished sentences.
int64_t step(const Stack* stack, const Cache* cache, const Beams* beams, float* logits,
             int64_t stride, int64_t advance, int64_t threads) {
    long sentences = cache->sentences, width = cache->width, rows = sentences * width;
    long end = cache->used + width, vocabulary = stack->output.outputs;
    long memory_longest = longest_of(cache->memory_lengths, sentences);
    long pieces = (vocabulary + PIECE - 1) / PIECE, candidates = beams->candidates;
    RowTables t(row_workspace, rows, sentences, rows * end + memory_longest, rows * pieces,
                rows * pieces * candidates + sentences * candidates);
    int32_t* slot_numbers = t.numbers + rows * end;
    for (long i = 0; i < memory_longest; i++) slot_numbers[i] = i;
    for (long b = 0; b <= sentences; b++) t.first[b] = b * width;
    for (long b = 0; b < sentences && cache->memory; b++)
        t.memory_seen[b] = {slot_numbers, cache->memory_lengths[b]};
    Rows all = {rows, sentences, beams->tokens, t.first, t.position, t.slot,
                t.seen, cache->own, cache->memory, t.memory_seen, 0};
    Buffers b(stage_workspace, *stack, rows, std::max(end, memory_longest), 0, threads);
    long time = *beams->time;
    run_team(threads, stages_of(*stack), [&](Team& team) {
        team.each(sentences, [&](long s) { move_hypotheses(*cache, *beams, s, t); });
        run_layers(team, *stack, all, b);
        product(team, Kind(stack->kind), stack->output, b.normed, stack->d_model, rows,
                b.own[team.id].prepared, b.shared, logits, stride);
        if (!advance) return;
        team.each(rows * pieces, [&](long piece) {
            long r = piece / pieces, start = piece % pieces * PIECE;
            bool early = time < beams->min_steps[r / width];
            t.pieces[piece] = scan_logits(
                logits + r * stride + start, start, std::min(PIECE, vocabulary - start),
                early ? beams->eos : -1, candidates, t.best + piece * candidates);
        });
        team.each(sentences, [&](long s) {
            extend_hypotheses(*beams, s, width, pieces, t.pieces + s * width * pieces,
                              t.best + s * width * pieces * candidates,
                              t.best + (rows * pieces + s) * candidates);
        });
    });
    for (long w = 0; w < width; w++) cache->next[w] += width;
    if (!advance) return sentences;
    ++*beams->time;
    long unfinished = 0;
    for (long s = 0; s < sentences; s++) unfinished += !beams->done[s];
    return unfinished;
}
}
