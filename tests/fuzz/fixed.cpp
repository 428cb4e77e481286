// Linked into every target: with `--fixed=RUNS FAILED CORPUS` a target tries RUNS inputs that follow from the corpus and
// their number alone, and ends, instead of searching. A search is guided by what inputs reach, which differs from run to
// run where there are threads; these inputs are the same on every machine. One that fails is left in the folder FAILED.
#include <fcntl.h>
#include <sanitizer/common_interface_defs.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

using Bytes = std::vector<uint8_t>;
constexpr size_t kMostBytes = 600;
constexpr uint8_t kLikely[] = {0, 1, 2, 4, 8, 16, 127, 128, 254, 255};

const Bytes* current = nullptr;
std::string failed;

// Whoever is called here may be anywhere: nothing is allocated.
void leave_input() {
  if (!current) return;
  const int file = open(failed.c_str(), O_CREAT | O_WRONLY | O_TRUNC, 0644);
  if (file >= 0 && write(file, current->data(), current->size()) >= 0) close(file);
  static constexpr char said[] = "the input is in ";
  for (const auto& [text, size] : {std::pair(said, sizeof(said) - 1),
                                   std::pair(failed.c_str(), failed.size()), std::pair("\n", size_t{1})})
    if (write(STDERR_FILENO, text, size) < 0) return;
}

void on_abort(int) {
  leave_input();
  std::signal(SIGABRT, SIG_DFL);
  std::abort();
}

std::vector<Bytes> read_corpus(const std::string& folder) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  std::vector<Bytes> made;
  for (const auto& path : paths) {
    std::ifstream in(path, std::ios::binary);
    made.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  return made;
}

class Mutator {
 public:
  Mutator(const std::vector<Bytes>& corpus, uint64_t number) : corpus_(corpus), random_(number) {}

  Bytes make() {
    Bytes made = corpus_.empty() || below(8) == 0 ? bytes(below(kMostBytes)) : some();
    for (size_t left = 1 + below(8); left; --left) change(made);
    made.resize(std::min(made.size(), kMostBytes));
    return made;
  }

 private:
  size_t below(size_t n) {
    return n ? random_() % n : 0;
  }  // the same with every library, unlike a distribution
  const Bytes& some() { return corpus_[below(corpus_.size())]; }
  Bytes bytes(size_t n) {
    Bytes made(n);
    for (uint8_t& byte : made) byte = static_cast<uint8_t>(random_());
    return made;
  }
  void insert(Bytes& in, const Bytes& more) {
    in.insert(in.begin() + static_cast<std::ptrdiff_t>(below(in.size() + 1)), more.begin(), more.end());
  }
  void change(Bytes& in) {
    const size_t at = below(in.size());
    switch (in.empty() ? 3 : below(7)) {
      case 0:
        in[at] = static_cast<uint8_t>(in[at] ^ 1u << below(8));
        return;
      case 1:
        in[at] = static_cast<uint8_t>(random_());
        return;
      case 2:
        in[at] = kLikely[below(std::size(kLikely))];
        return;
      case 3:
        return insert(in, bytes(1 + below(24)));
      case 4:
        in.erase(
            in.begin() + static_cast<std::ptrdiff_t>(at),
            in.begin() + static_cast<std::ptrdiff_t>(at + 1 + below(std::min<size_t>(in.size() - at, 16))));
        return;
      case 5:
        return insert(in, Bytes(1 + below(12), kLikely[below(std::size(kLikely))]));
      default:
        return insert(in, corpus_.empty() ? bytes(8) : Bytes(some()));
    }
  }

  const std::vector<Bytes>& corpus_;
  std::mt19937_64 random_;
};

void try_all(uint64_t runs, const std::string& folder) {
  const auto corpus = read_corpus(folder);
  std::signal(SIGABRT, on_abort);
  __sanitizer_set_death_callback(leave_input);
  uint64_t sum = 0;
  for (uint64_t number = 0; number < runs; ++number) {
    const Bytes input = number < corpus.size() ? corpus[number] : Mutator(corpus, number).make();
    for (const uint8_t byte : input) sum = sum * 1099511628211u + byte;
    current = &input;
    LLVMFuzzerTestOneInput(input.data(), input.size());
    current = nullptr;
  }
  std::printf("Done %llu runs of inputs %016llx\n", static_cast<unsigned long long>(runs),
              static_cast<unsigned long long>(sum));
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  constexpr char kFixed[] = "--fixed=";
  if (*argc != 4 || std::strncmp((*argv)[1], kFixed, sizeof(kFixed) - 1)) return 0;
  failed = std::string((*argv)[2]) + "/fixed";
  try_all(std::strtoull((*argv)[1] + sizeof(kFixed) - 1, nullptr, 10), (*argv)[3]);
  std::exit(0);
}
