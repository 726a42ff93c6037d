from benchmarks.bench.command import main

main()
