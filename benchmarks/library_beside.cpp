// llama.cpp's library by itself, for library_beside.py: reads a command in each line of standard input, and writes the
// seconds that it took.
//
//   first PROMPT            a prompt of so many tokens, until its first token is chosen
//   streams N PROMPT OUTPUT N of them at once, OUTPUT tokens of each; the seconds after the first tokens, and in all
//
// Tokens are chosen greedily. Built with llama.cpp's headers and libraries, as library_beside.py says.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "ggml-backend.h"
#include "llama.h"

namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

class Session {
 public:
  Session(llama_model* model, int threads, int streams, int tokens)
      : vocab_(llama_vocab_n_tokens(llama_model_get_vocab(model))) {
    auto settings = llama_context_default_params();
    settings.n_ctx = tokens;
    settings.n_batch = tokens;
    settings.n_seq_max = streams;
    settings.kv_unified = true;
    settings.n_threads = settings.n_threads_batch = threads;
    context_ = llama_init_from_model(model, settings);
    batch_ = llama_batch_init(tokens, 0, 1);
    if (context_ == nullptr) std::exit(1);
  }

  // Returns seconds after the first tokens, and in all.
  std::pair<double, double> run(int streams, int prompt, int output) {
    llama_memory_clear(llama_get_memory(context_), true);
    std::vector<int> next(streams);
    std::vector<int> rows(streams);
    const double start = now();
    batch_.n_tokens = 0;
    for (int stream = 0; stream < streams; ++stream) {
      for (int at = 0; at < prompt; ++at) add(static_cast<int>(random_() % vocab_), at, stream, at + 1 == prompt);
      rows[stream] = batch_.n_tokens - 1;
    }
    decode(rows, next);
    const double first = now();
    for (int at = 1; at < output; ++at) {
      batch_.n_tokens = 0;
      for (int stream = 0; stream < streams; ++stream) {
        rows[stream] = stream;
        add(next[stream], prompt + at - 1, stream, true);
      }
      decode(rows, next);
    }
    const double end = now();
    return {end - first, end - start};
  }

 private:
  void add(int token, int position, int stream, bool is_wanted) {
    const int at = batch_.n_tokens++;
    batch_.token[at] = token;
    batch_.pos[at] = position;
    batch_.n_seq_id[at] = 1;
    batch_.seq_id[at][0] = stream;
    batch_.logits[at] = static_cast<int8_t>(is_wanted);
  }

  void decode(const std::vector<int>& rows, std::vector<int>& next) {
    if (const int status = llama_decode(context_, batch_); status != 0) {
      std::fprintf(stderr, "llama_decode: %d\n", status);
      std::exit(1);
    }
    for (size_t stream = 0; stream < rows.size(); ++stream) {
      const float* logits = llama_get_logits_ith(context_, rows[stream]);
      next[stream] = static_cast<int>(std::max_element(logits, logits + vocab_) - logits);
    }
  }

  int vocab_;
  llama_context* context_;
  llama_batch batch_;
  std::mt19937 random_{1};
};

}  // namespace

int main(int count, char** arguments) {
  if (count != 4) {
    std::fprintf(stderr, "usage: library_beside MODEL.gguf FOLDER_OF_BACKENDS THREADS\n");
    return 2;
  }
  ggml_backend_load_all_from_path(arguments[2]);
  llama_backend_init();
  llama_model* model = llama_model_load_from_file(arguments[1], llama_model_default_params());
  if (model == nullptr) return 1;
  Session session(model, std::atoi(arguments[3]), 8, 4096);
  std::puts("ready");
  std::fflush(stdout);
  char line[128];
  int streams = 0;
  int prompt = 0;
  int output = 0;
  while (std::fgets(line, sizeof line, stdin) != nullptr) {
    if (std::sscanf(line, "first %d", &prompt) == 1) {
      streams = output = 1;
    } else if (std::sscanf(line, "streams %d %d %d", &streams, &prompt, &output) != 3) {
      return 2;
    }
    const auto [after, all] = session.run(streams, prompt, output);
    std::printf("%.6f %.6f\n", after, all);
    std::fflush(stdout);
  }
  return 0;
}
