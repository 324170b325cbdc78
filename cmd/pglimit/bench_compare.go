package main

import "github.com/spf13/cobra"

func newBenchCompareCommand(a *app) *cobra.Command { return &cobra.Command{Use: "compare"} }
func newBenchCapacityCommand(a *app) *cobra.Command { return &cobra.Command{Use: "capacity"} }
