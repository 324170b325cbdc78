package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// A client that is slow or idle cannot hold a connection of any server here for ever.
func TestEveryServerBoundsItsConnections(t *testing.T) {
	t.Parallel()
	servers, files := 0, token.NewFileSet()
	err := filepath.WalkDir("../..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(node ast.Node) bool {
			literal, is := node.(*ast.CompositeLit)
			if !is {
				return true
			}
			if of, is := literal.Type.(*ast.SelectorExpr); !is || of.Sel.Name != "Server" || of.X.(*ast.Ident).Name != "http" {
				return true
			}
			servers++
			set := map[string]bool{}
			for _, field := range literal.Elts {
				if pair, is := field.(*ast.KeyValueExpr); is {
					set[pair.Key.(*ast.Ident).Name] = true
				}
			}
			if !set["ReadTimeout"] || !set["IdleTimeout"] {
				t.Errorf("%s: no ReadTimeout or no IdleTimeout", files.Position(node.Pos()))
			}
			return true
		})
		return nil
	})
	if err != nil || servers < 4 {
		t.Errorf("%d servers, %v", servers, err)
	}
}
