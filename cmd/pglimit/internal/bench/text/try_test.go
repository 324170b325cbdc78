package text
import ("testing";"fmt")
func TestTry(t *testing.T){ fmt.Print(Suite(suite(2), manyAdvice(), Options{})) }
